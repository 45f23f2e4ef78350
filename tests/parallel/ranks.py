"""One of several ranks on this machine: builds and runs its part of small models in every layout, beside the whole."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import torch

from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.parallel.collectives import groups_of, join
from octavo.parallel.meeting import Layout, Meeting
from octavo.worker.build import staged
from tests.models.test_load import tensors_for
from tests.parity.memory import Memory, random_tokens
from tests.parity.tiny import SETTINGS, tiny

ARCHITECTURES = {
    "llama": ("llama", {"num_hidden_layers": 4}),
    "llama with biases": ("llama", {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True}),
    "llama of one kv head, tied, vocab 1003": (
        "llama", {"num_hidden_layers": 4, "num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 1003},
    ),
    "llama of 10 layers, vocab 1003": ("llama", {"num_hidden_layers": 10, "vocab_size": 1003}),
    "mistral": ("mistral", {"num_hidden_layers": 4, "sliding_window": 9}),
    "qwen2": ("qwen2", {"num_hidden_layers": 4}),
    "qwen3": ("qwen3", {"num_hidden_layers": 4}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "phi3": ("phi3", {"num_hidden_layers": 4}),
    "granite": ("granite", {"num_hidden_layers": 4, "residual_multiplier": 0.3, "logits_scaling": 3.0}),
    "olmo2": ("olmo2", {"num_hidden_layers": 4}),
    "gemma2": ("gemma2", {"num_hidden_layers": 4, "sliding_window": 6}),
    "gemma3": ("gemma3_text", {"num_hidden_layers": 4, "sliding_window": 6}),
}  # fmt: skip
LAYOUTS = {
    "TP 2": Layout(tensor=2, data=2), "TP 4": Layout(tensor=4), "PP 2": Layout(pipeline=2, data=2), "PP 3": Layout(pipeline=3),
    "TP 2 x PP 2": Layout(tensor=2, pipeline=2),
}  # fmt: skip
PATIENCE = timedelta(seconds=60)
CHUNKS = [9, 5, 1, 1]
TEXT = random_tokens(20)


def run(status, rank: int, meeting: Meeting) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    join(meeting, rank, device)
    meshes = {name: groups_of(layout, rank, device, PATIENCE) for name, layout in LAYOUTS.items()}
    for architecture, (family, config) in ARCHITECTURES.items():
        torch.manual_seed(7)
        c = tiny(family, **config)
        tensors = tensors_for(c, 0.3)
        whole = build_model(c, SETTINGS)
        load(whole, tensors)
        expected = Memory(whole, 4, max_length=32).run(TEXT, CHUNKS)
        for name, layout in LAYOUTS.items():
            if rank < layout.num_ranks:
                status.say("case", layout=name, architecture=architecture, **run_part(c, tensors, meshes[name], expected))


def run_part(c, tensors, mesh, expected):
    """How far this rank's logits are from those of the whole model, and its choice of tokens; nothing where the rank is not the last."""
    part = build_model(c, SETTINGS, mesh)
    load(part, tensors)
    model = staged(part, mesh.pp, SETTINGS, torch.device("cpu"))
    seen = []

    class Driven(SimpleNamespace):
        def __call__(self, ctx):
            seen.append(model(ctx))
            return seen[-1]

    driven = Driven(attention_layers=part.attention_layers, logits=model.logits)
    found = Memory(driven, 4, max_length=32).run(TEXT, CHUNKS)
    if not part.stage.last:
        return {"layers": list(part.stage.layers)}
    with torch.inference_mode():
        logits = model.logits(torch.cat(seen))
        tokens, peaks = model.best(torch.cat(seen))
    drawn = mesh.tp.agreed(torch.full((3,), float(mesh.tp.rank)))
    return {
        "layers": list(part.stage.layers),
        "distance": (found - expected).abs().max().item(),
        "size": expected.abs().max().item(),
        "same_tokens": torch.equal(tokens, logits.argmax(-1)),
        "same_peaks": torch.equal(peaks, logits.amax(-1)),
        "drawn": drawn.tolist(),
    }
