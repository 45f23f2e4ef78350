"""From logits to tokens. The order of all operations is written in `sampler`."""
