"""One of several ranks on this machine: builds and runs its part of small models in every layout, beside the whole."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import torch

from octavo.models.load import load
from octavo.models.registry import build_model
from octavo.parallel.collectives import groups_of, join
from octavo.parallel.meeting import Layout, Meeting
from octavo.quant.checkpoint import plain_scheme
from octavo.quant.mxfp4 import experts_in_mxfp4
from octavo.worker.build import staged
from tests.models.test_load import lazy, tensors_for
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
EXPERTS = {
    "mixtral": ("mixtral", {"num_hidden_layers": 3, "num_local_experts": 4}),
    "qwen2_moe": (
        "qwen2_moe",
        {"num_hidden_layers": 3, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
         "shared_expert_intermediate_size": 24},
    ),
    "qwen3_moe of 7 experts": (
        "qwen3_moe", {"num_hidden_layers": 3, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 12},
    ),
    "deepseek_v2": (
        "deepseek_v2",
        {"num_hidden_layers": 3, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8, "n_routed_experts": 8,
         "num_experts_per_tok": 3, "moe_intermediate_size": 12, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
         "topk_method": "group_limited_greedy", "first_k_dense_replace": 1},
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {"num_hidden_layers": 3, "q_lora_rank": 12, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8,
         "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 2, "topk_group": 2,
         "first_k_dense_replace": 1},
    ),
    "gpt_oss": ("gpt_oss", {"num_hidden_layers": 3, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}),
    "gpt_oss in MXFP4": (
        "gpt_oss", {"num_hidden_layers": 3, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6, "intermediate_size": 64},
    ),
}  # fmt: skip
LAYOUTS = {
    "TP 2": Layout(tensor=2, data=2), "TP 4": Layout(tensor=4), "PP 2": Layout(pipeline=2, data=2), "PP 3": Layout(pipeline=3),
    "TP 2 x PP 2": Layout(tensor=2, pipeline=2), "DP 2": Layout(data=2),
}  # fmt: skip
EXPERT_LAYOUTS = {
    "TP 2, each expert cut": (Layout(tensor=2), "local"),
    "PP 2, all experts": (Layout(pipeline=2), "local"),
    "DP 2, all experts": (Layout(data=2), "local"),
    "TP 2 x PP 2, each expert cut": (Layout(tensor=2, pipeline=2), "local"),
    "EP 2": (Layout(tensor=2, experts=True), "local"),
    "EP 2 x PP 2": (Layout(tensor=2, pipeline=2, experts=True), "local"),
    "EP 2 of DP 2": (Layout(data=2, experts=True), "allgather_reducescatter"),
    "EP 4 of TP 2 x DP 2": (Layout(tensor=2, data=2, experts=True), "allgather_reducescatter"),
    "EP 2 of DP 2, all to all": (Layout(data=2, experts=True), "alltoall"),
    "EP 2, all to all": (Layout(tensor=2, experts=True), "alltoall"),
    "EP 4 of TP 2 x DP 2, all to all": (Layout(tensor=2, data=2, experts=True), "alltoall"),
}
EXPERT = re.compile(r"\.experts\.\d+\..*\.weight$")
PATIENCE = timedelta(seconds=60)
CHUNKS = [9, 5, 1, 1]
PROMPTS = [random_tokens(14, seed=copy) for copy in range(2)]
NUM_GREEDY = 6


def run(status, rank: int, meeting: Meeting) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    join(meeting, rank, device)
    layouts = {name: (layout, "local") for name, layout in LAYOUTS.items()} | EXPERT_LAYOUTS
    meshes = {name: groups_of(layout, rank, device, PATIENCE) for name, (layout, _) in layouts.items()}
    for architecture, (family, config) in {**ARCHITECTURES, **EXPERTS}.items():
        torch.manual_seed(7)
        c = tiny(family, **config)
        tensors, scheme = tensors_for(c, 0.3), plain_scheme
        if "MXFP4" in architecture:
            tensors, scheme = in_mxfp4(tensors), experts_in_mxfp4
        whole = build_model(c, SETTINGS, scheme=scheme)
        load(whole, tensors)
        texts = [continued(whole, prompt) for prompt in PROMPTS]
        expected = [Memory(whole, 4, max_length=32).run(text, CHUNKS) for text in texts]
        for name, (layout, dispatch) in layouts.items():
            if rank < layout.num_ranks and architecture in (EXPERTS if name in EXPERT_LAYOUTS else ARCHITECTURES):
                settings = replace(SETTINGS, dispatch=dispatch)
                found = run_part(c, tensors, scheme, meshes[name], settings, texts[meshes[name].dp.rank], expected[meshes[name].dp.rank])
                status.say("case", layout=name, architecture=architecture, **found)


def in_mxfp4(tensors):
    """With random bytes in place of the weights of experts."""
    found = {}
    for name, tensor in tensors.items():
        if EXPERT.search(name):
            out, inside = tensor.shape
            found[name.replace("weight", "blocks")] = lazy(torch.randint(0, 256, (out, inside // 32, 16), dtype=torch.uint8))
            found[name.replace("weight", "scales")] = lazy(torch.randint(122, 127, (out, inside // 32), dtype=torch.uint8))
        else:
            found[name] = tensor
    return found


def continued(model, prompt):
    """A prompt with the model's greedy choice of what follows."""
    memory = Memory(model, 4, max_length=32)
    text, new = list(prompt), list(prompt)
    for _ in range(NUM_GREEDY):
        new = [int(memory.step([(0, new)])[0][-1].argmax())]
        text += new
    return text


def run_part(c, tensors, scheme, mesh, settings, text, expected):
    """How far this rank's logits are from those of the whole model, and its choice of tokens; nothing where the rank is not the last."""
    part = build_model(c, settings, mesh, scheme)
    load(part, tensors)
    model = staged(part, mesh.pp, settings, torch.device("cpu"))
    seen = []

    class Driven(SimpleNamespace):
        def __call__(self, ctx):
            seen.append(model(ctx))
            return seen[-1]

    driven = Driven(attention_layers=part.attention_layers, logits=model.logits)
    found = Memory(driven, 4, max_length=32).run(text, CHUNKS)
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
        "greedy": found[-NUM_GREEDY - 1 : -1].argmax(-1).tolist() == text[-NUM_GREEDY:],
        "same_tokens": torch.equal(tokens, logits.argmax(-1)),
        "same_peaks": torch.equal(peaks, logits.amax(-1)),
        "drawn": drawn.tolist(),
    }
