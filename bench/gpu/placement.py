"""Where the processes of an engine with several GPUs run with --numa-bind: asked of the driver, and of the kernel once they run.

    PYTHONPATH=. python bench/gpu/placement.py [MODEL] [--ranks 2] [--cpus 0-7 8-15]

Ends with 1 where a worker's process, or one of its threads, has other cores than were asked for (by default those of its GPU's node), or
memory that is not bound. Writes placement.json to the folder that OUT names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path


def descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return [pid for child in children for pid in (child, *descendants(child))]


def shown(pid: int) -> dict[str, str]:
    """What the kernel says of a process: the cores and nodes that it may use, and what its memory is bound to."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    try:
        policies = set(re.findall(r"^\S+ (\S+)", Path(f"/proc/{pid}/numa_maps").read_text(), re.MULTILINE))
    except OSError as error:
        policies = {f"not shown: {error.strerror}"}
    tasks = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    threads = {text.split("Cpus_allowed_list:\t")[1].split("\n")[0] for text in tasks}
    return {
        "command": Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[-80:], "cores": status["Cpus_allowed_list"],
        "cores of its threads": " | ".join(sorted(threads)), "nodes": status["Mems_allowed_list"], "memory": " ".join(sorted(policies)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="bench/models/qwen3-0.6b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cpus", nargs="*", default=[], help="cores for each GPU, as --numa-bind-cpus takes them")
    asked = parser.parse_args()
    from octavo import LLM
    from octavo.host.cores import as_list
    from octavo.host.numa import gpu_node
    from octavo.host.topology import Topology

    machine = Topology.read()
    nodes = [gpu_node(rank) for rank in range(asked.ranks)]
    found: dict = {"nodes": {node: as_list(cores) for node, cores in machine.nodes.items()}, "node of each GPU": nodes}
    print(found, flush=True)
    flags: dict = {"load_format": "dummy", "skip_tokenizer_init": True, "hf_overrides": {"num_hidden_layers": 2}}
    try:
        llm = LLM(asked.model, **flags, tensor_parallel_size=asked.ranks, numa_bind=True, numa_bind_cpus=tuple(asked.cpus))
    except Exception as error:  # such as a kernel that knows no nodes
        write(found | {"good": False, "refused": str(error)})
        raise
    found["processes"] = {pid: shown(pid) for pid in (os.getpid(), *descendants(os.getpid()))}
    llm.close()
    for pid, said in found["processes"].items():
        print(pid, said)
    wanted = asked.cpus or [as_list(machine.nodes[node if node in machine.nodes else min(machine.nodes)]) for node in nodes]
    bound = [said for said in found["processes"].values() if "bind" in said["memory"]]
    found["wanted"], found["bound to memory"] = wanted, len(bound)
    found["good"] = len(bound) >= asked.ranks and all(any(alone_on(cores, said) for said in bound) for cores in wanted)
    write(found)
    print(f"{len(bound)} processes are bound to memory; cores wanted: {wanted}; {'good' if found['good'] else 'NOT AS ASKED'}")
    return 0 if found["good"] else 1


def write(found: dict) -> None:
    if folder := os.environ.get("OUT"):
        (Path(folder) / "placement.json").write_text(json.dumps(found, indent=1))


def alone_on(cores: str, said: dict[str, str]) -> bool:
    return said["cores"] == cores and set(said["cores of its threads"].split(" | ")) == {cores}


if __name__ == "__main__":
    sys.exit(main())
