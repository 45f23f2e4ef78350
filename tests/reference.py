"""The bundled model in transformers, on the same dequantised weights in fp32: what Octavo's texts are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.models.checkpoint import open_checkpoint

MODEL = "smollm2-135m"
NUM_TOKENS = 64
CLOSE = 1e-3  # a top-two margin in the reference under which another order of additions may decide otherwise

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The speed of light in vacuum is",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Die Hauptstadt von Deutschland heißt",
)
# Every place at which the reference itself hardly knows: prompt -> the first output position with a margin under CLOSE.
DOUBTFUL: dict[int, int] = {7: 58}


@dataclass(frozen=True)
class Continuation:
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits: torch.Tensor  # [prompt + output, vocab] float32, as the reference computes them over the whole text
    doubtful_from: int  # output position from which texts may differ: the first with a margin under CLOSE; NUM_TOKENS if none


def transformers_model(name: str = MODEL):
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint = open_checkpoint(name)
    config = AutoConfig.for_model(**checkpoint.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = {name: tensor.load(torch.float32) for name, tensor in checkpoint.tensors().items()}
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its table is no weight and was left on "meta"
    return model.eval(), checkpoint


@torch.inference_mode()
def verified(texts: Sequence[Sequence[int]]) -> list[Continuation]:
    """What the reference says of given continuations of `PROMPTS`: by induction they are its own greedy texts if each token is the one
    that it would choose after the tokens before it. One pass over each text shows that; raises AssertionError at the first difference."""
    model, checkpoint = transformers_model()
    tokenizer = checkpoint.tokenizer()
    return [_verify(model, tuple(tokenizer.encode(prompt)), tuple(text)) for prompt, text in zip(PROMPTS, texts, strict=True)]


def _verify(model, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]) -> Continuation:
    logits = model(torch.tensor([[*prompt_ids, *token_ids]])).logits[0]  # [T, vocab]
    at = logits[len(prompt_ids) - 1 : -1]  # [outputs, vocab]: what each output token is chosen from
    top = at.topk(2).values
    close = (top[:, 0] - top[:, 1] < CLOSE).nonzero()
    sure = int(close[0]) if len(close) else len(token_ids)
    chosen = at.argmax(-1).tolist()
    assert chosen[:sure] == list(token_ids[:sure]), f"{prompt_ids}: the reference goes on with {chosen[:sure]}"
    return Continuation(prompt_ids, token_ids, logits, sure)
