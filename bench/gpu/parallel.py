"""Several GPUs of one host: collectives by size and way, checked and timed in a graph; then texts of cut models against those of one GPU.

    python bench/gpu/parallel.py [--ranks 2] [--only collectives|texts|experts]

Prints a table and writes JSON to the folder that OUT names.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

SIZES = tuple(1 << power for power in range(12, 28))  # bytes
REPEATS = 30  # in a graph
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 6, "intermediate_size": 3072, "vocab_size": 32003, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 32, "num_experts_per_tok": 4,
    "moe_intermediate_size": 256, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=("collectives", "texts", "experts"))
    options = parser.parse_args()
    found = {}
    for name, measure in (("collectives", collectives), ("texts", texts), ("experts", experts)):
        if options.only in (None, name):
            begin_s = time.time()
            try:
                found[name] = measure(options.ranks)
            except Exception as error:
                traceback.print_exc()
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"{name}: {time.time() - begin_s:.1f} s")
    if folder := os.environ.get("OUT"):
        (Path(folder) / "parallel.json").write_text(json.dumps(found))
    print_table(found)


# ---- collectives


def collectives(num_ranks: int) -> list[dict]:
    from octavo.parallel.collectives import Host
    from octavo.parallel.meeting import Layout

    host = Host.open(Layout(tensor=num_ranks), timeout_s=60)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=one_rank, args=(rank, host.meeting, results), daemon=True) for rank in range(num_ranks)]
    for rank in ranks:
        rank.start()
    try:
        return results.get(timeout=150)
    finally:
        for rank in ranks:
            rank.join(timeout=5)
            rank.kill()


def one_rank(rank: int, meeting, results) -> None:
    from octavo.parallel.collectives import join

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = join(meeting, rank, device).tp
    print(f"rank {rank}: symmetric memory {'works' if group.symmetric else 'DOES NOT WORK'}", flush=True)
    found = []
    for size in SIZES:
        x = torch.randint(-8, 9, (size // 2,), generator=torch.Generator(device).manual_seed(rank), device=device).to(torch.bfloat16)
        expected = x.clone()
        dist.all_reduce(expected, group=group.group)
        for name, call in ways(group, x).items():
            row = {"bytes": size, "way": name}
            try:
                row["wrong"] = int((call() != expected).sum()) if "gather" not in name else 0
                row["us"] = timed(call)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"
            found.append(row)
    if rank == 0:
        results.put(found)
        time.sleep(1)


def ways(group, x):
    """Name -> a call that gives the sum (or gathers), for those ways that take x."""
    size = x.numel() * x.element_size()
    found = {"nccl": lambda: reduced(group.group, x)}
    symmetric = group.symmetric
    if symmetric is None:
        return found
    if size <= symmetric.push.max_bytes:
        found["push"] = lambda: symmetric.push.sum(x)
        found["push gather"] = lambda: symmetric.push.gather(x)
    if symmetric.sums(x):
        found["blocks"] = lambda: symmetric.blocks.sum(x)
    return found


def reduced(group, x):
    y = x.clone()  # the copy is timed too: 1 to 5 us
    dist.all_reduce(y, group=group)
    return y


def timed(call) -> float:
    """Microseconds of a call within a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(REPEATS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(5):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / (5 * REPEATS)


# ---- texts


def texts(num_ranks: int) -> list[dict]:
    cut = {"tensor_parallel_size": num_ranks}
    return compared(CONFIG, ({}, cut, {"pipeline_parallel_size": num_ranks}, cut | {"cudagraph_mode": "NONE"}))


def experts(num_ranks: int) -> list[dict]:
    """Each expert cut, whole ones on ranks, and on replicas that step together."""
    cut, copies = {"tensor_parallel_size": num_ranks}, {"data_parallel_size": num_ranks}
    return compared(CONFIG | EXPERTS, ({}, cut, *(way | {"enable_expert_parallel": True} for way in (cut, copies))))


def compared(config: dict, layouts: Sequence[dict]) -> list[dict]:
    """Texts of a small random model by these flags, against the first's: tokens alike before the first difference, and by how much of
    log-probability the first preferred its token where a greedy text parts from its own: little, unless something is wrong."""
    from octavo import LLM, SamplingParams

    folder = tempfile.mkdtemp()
    save_model(Path(folder), config)
    prompts = [{"prompt_token_ids": [3 + (7 * row + 11 * i) % 30_000 for i in range(20 + 13 * row)]} for row in range(12)]
    found, first, likely = [], None, []
    for flags in layouts:
        llm = LLM(folder, skip_tokenizer_init=True, max_model_len=1024, gpu_memory_utilization=0.3, max_num_seqs=64, **flags)
        row: dict = {"flags": flags}
        for name, params in (
            ("greedy", SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)),
            ("logprobs", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1, detokenize=False)),
            ("random", SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=32, ignore_eos=True, detokenize=False)),
        ):
            row[name] = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
        if first is None:
            params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, logprobs=20, detokenize=False)
            likely = [output.outputs[0].logprobs for output in llm.generate(prompts, params, use_tqdm=False)]
        llm.close()
        first = first or row
        row["greedy_parted_by"] = sorted(gap for gap in map(preference, first["greedy"], row["greedy"], likely) if gap is not None)
        for name in ("greedy", "logprobs", "random"):
            same = [agreeing(a, b) for a, b in zip(first[name], row.pop(name) if row is not first else first[name])]
            row[f"{name}_tokens_alike"] = sum(same)
        found.append(row)
        print({key: value for key, value in row.items() if key not in ("greedy", "logprobs", "random")}, flush=True)
    for name in ("greedy", "logprobs", "random"):
        found[0].pop(name)
    return found


def agreeing(a: list[int], b: list[int]) -> int:
    """Tokens before the first difference: in bfloat16 sums of parts are rounded otherwise, so long texts part some time."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))


def preference(a: list[int], b: list[int], likely: list) -> float | None:
    """Of a's token over b's where they part; None where they do not, infinite where b's is not among the likely ones."""
    at = agreeing(a, b)
    if at == len(a):
        return None
    ours, theirs = likely[at].get(a[at]), likely[at].get(b[at])
    return round(ours.logprob - theirs.logprob, 4) if ours and theirs else float("inf")


def save_model(folder: Path, config: dict) -> None:
    from safetensors.torch import save_file

    from octavo.config.architecture import Architecture
    from octavo.config.resolved import Resolved
    from octavo.models.materialize import layers_of
    from octavo.models.registry import build_model

    torch.manual_seed(0)
    model = build_model(Architecture.from_config(config), Resolved(dtype="bfloat16", kv_dtype="bfloat16", optimization_level=0))
    tensors = {}
    for _, layer in layers_of(model):
        for weight in layer.weights():
            if weight.pieces == {weight.name}:
                scale = 0.04 if len(weight.shape) > 1 else 0.0
                tensors[weight.name] = (scale * torch.randn(weight.shape) + (len(weight.shape) == 1)).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def print_table(found: dict) -> None:
    rows = found.get("collectives")
    if isinstance(rows, list):
        names = list(dict.fromkeys(row["way"] for row in rows))
        print("us in a graph    " + "".join(f"{name:>14}" for name in names))
        for size in SIZES:
            cells = {row["way"]: row for row in rows if row["bytes"] == size}
            shown = [f"{cells[n].get('us', float('nan')):.1f}{'!' * bool(cells[n].get('wrong'))}" if n in cells else "" for n in names]
            print(f"{size:>12} bytes" + "".join(f"{cell:>14}" for cell in shown))
        for row in rows:
            if "failed" in row or row.get("wrong"):
                print("FAILED", row)
    for row in (*found.get("texts", ()), *found.get("experts", ())):
        print(row)


if __name__ == "__main__":
    main()
