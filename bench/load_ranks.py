"""What loading a checkpoint of several shards costs the ranks of one host: host memory beyond the weights, and bytes from disk.

    PYTHONPATH=. python bench/load_ranks.py [--ranks 2] [--layers 4] [--hidden 1024] [--shards 4] [--cold]

Makes a checkpoint with Llama's shapes in bfloat16 and loads it cut over so many ranks, which meet over gloo. Prints a line of JSON:

    beyond_bytes     by rank: the most memory it held at once (VmHWM) over what it holds when the weights are in place (VmRSS)
    disk_bytes       what all ranks together had the disk read; with --cold the page cache forgets the files first
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from octavo.config.architecture import Architecture
from octavo.config.resolved import Resolved
from octavo.engine.process import Status, spawn
from octavo.host.files import text_of
from octavo.models.checkpoint import open_checkpoint
from octavo.models.load import load
from octavo.models.materialize import layers_of
from octavo.models.registry import build_model
from octavo.parallel.collectives import Host, join
from octavo.parallel.meeting import Layout, Meeting

VOCAB = 8192


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("ranks", 2), ("layers", 4), ("hidden", 1024), ("shards", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cold", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shards = make(Path(folder), asked.layers, asked.hidden, asked.shards)
        if asked.cold:
            for path in shards:
                forget(path)
        sizes = [path.stat().st_size for path in shards]
        said = start(folder, asked.ranks)
    found = {name: [one[name] for one in said] for name in ("beyond_bytes", "held_bytes", "load_s")}
    disk_bytes = sum(one["disk_bytes"] for one in said)
    print(json.dumps({"file_bytes": sum(sizes), "largest_shard_bytes": max(sizes), "disk_bytes": disk_bytes, **found}))


def settings(dtype: str = "bfloat16") -> Resolved:
    return Resolved(max_model_len=128, dtype=dtype, optimization_level=0)


def make(folder: Path, layers: int, hidden: int, num_shards: int) -> list[Path]:
    """A checkpoint whose tensors are laid in so many files in the order of the layers."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": 3 * hidden,
        "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": layers, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    model = build_model(Architecture.from_config(config), settings())
    shapes = {w.name: w.shape for _, layer in layers_of(model) for w in layer.weights() if w.pieces == {w.name}}
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    groups: list[dict[str, torch.Size]] = [{}]
    for name, shape in shapes.items():
        if sum(shape.numel() for shape in groups[-1].values()) > total / num_shards:
            groups.append({})
        groups[-1][name] = torch.Size(shape)
    paths, places = list[Path](), dict[str, str]()
    for number, group in enumerate(groups):
        paths.append(folder / f"model-{number + 1:05}-of-{len(groups):05}.safetensors")
        save_file({name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in group.items()}, paths[-1])
        places |= dict.fromkeys(group, paths[-1].name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return paths


def forget(path: Path) -> None:
    """Have the page cache forget a file, where its file system can."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def start(folder: str, num_ranks: int) -> list[dict[str, float]]:
    """What each rank says of itself."""
    host = Host.open(Layout(tensor=num_ranks), timeout_s=120)
    children = [spawn("bench.load_ranks:run", rank, host.meeting, folder) for rank in range(num_ranks)]
    said: list[dict[str, float]] = []
    try:
        for child in children:
            with os.fdopen(child.status_fd, "rb") as pipe:
                said += [json.loads(line) for line in pipe]
            assert child.end() == "code 0", said
    finally:
        for child in children:
            child.kill()
    return said


def run(status: Status, rank: int, meeting: Meeting, folder: str) -> None:
    torch.set_num_threads(1)
    mesh = join(meeting, rank, torch.device("cpu"))
    checkpoint = open_checkpoint(folder)
    model = build_model(Architecture.from_config(checkpoint.config), settings(), mesh)
    for parameter in model.parameters():
        parameter.data.zero_()  # so that filling them is nothing more than reading
    mesh.tp.all_reduce(torch.zeros(1))
    before = disk_bytes()
    tensors, started_s = checkpoint.tensors(), time.monotonic()
    load(model, tensors)
    load_s = time.monotonic() - started_s
    peak, held = memory_bytes("VmHWM"), memory_bytes("VmRSS")
    status.say("loaded", beyond_bytes=peak - held, held_bytes=held, disk_bytes=disk_bytes() - before, load_s=load_s)


def memory_bytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", text_of(Path("/proc/self/status")))
    return 1024 * int(found[1]) if found else 0


def disk_bytes() -> int:
    """What this process has had disks read."""
    found = re.search(r"^read_bytes: (\d+)", text_of(Path("/proc/self/io")), re.M)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
