"""Checks of the host: cores, memory, limits."""

from __future__ import annotations

from octavo.doctor.finding import Check, Facts, Finding, ok
from octavo.host.cores import as_list
from octavo.plan.predict import cores_needed

GIB, MIB = 1 << 30, 1 << 20
LEAST_FREE_BYTES, LEAST_SHM_BYTES, LEAST_FILES = 4 * GIB, 256 * MIB, 4096


def cores(facts: Facts) -> Finding:
    physical = len(facts.machine.physical(facts.allowed))
    have = physical if facts.quota is None else min(physical, facts.quota)
    text = f"{have:g} physical cores may be used"
    if not facts.gpus:
        return ok(text)
    tensor, pipeline = facts.tensor, max(1, facts.pipeline // facts.hosts)
    need = cores_needed(tensor, pipeline, facts.data)
    if have >= need:
        return ok(f"{text}; this layout keeps {need} busy")
    parts = f"{facts.data} for HTTP, {facts.data} for engines, {facts.num_workers} for workers" + (", 1 for balance" * (facts.data > 1))
    return Finding("warning", f"{text}, and this layout keeps {need} busy ({parts})", "give it more cores, or GPUs wait for the host")


def hyper_threading(facts: Facts) -> Finding:
    logical, physical = len(facts.allowed), len(facts.machine.physical(facts.allowed))
    if logical == physical:
        return ok("one thread a core")
    return Finding("note", f"{logical} logical CPUs are {physical} cores", "nothing: workers on the CPU take one thread of each core")


def cpuset(facts: Facts) -> Finding:
    everything = {cpu for cpus in facts.machine.nodes.values() for cpu in cpus}
    if facts.allowed >= everything:
        return ok(f"all CPUs of the machine: {as_list(facts.allowed)}")
    text = f"CPUs {as_list(facts.allowed)} of {as_list(everything)}: affinity or the container's cpuset"
    return Finding("note", text, "nothing, if it is meant so; --cpuset-cpus or taskset widen it")


def quota(facts: Facts) -> Finding:
    if facts.quota is None:
        return ok("no quota on CPU time")
    if facts.quota >= len(facts.allowed):
        return ok(f"a quota of {facts.quota:g} cores, no less than there are")
    text = f"a quota of {facts.quota:g} cores' time on {len(facts.allowed)} CPUs"
    return Finding("warning", text, "prefer a cpuset (docker run --cpuset-cpus): threads that run out of quota stand still in mid-step")


def numa(facts: Facts) -> Finding:
    nodes = {node: as_list(cpus) for node, cpus in facts.machine.nodes.items()}
    if len(nodes) == 1:
        return ok("one node of memory")
    text = f"{len(nodes)} nodes of memory: {'; '.join(f'{node} has CPUs {cpus}' for node, cpus in nodes.items())}"
    if not facts.gpus:
        return Finding("note", f"{text}. Workers on the CPU get a node each", "a --tensor-parallel-size that the number of nodes divides")
    text += f"; GPUs are on {', '.join('?' if node is None else str(node) for node in facts.gpu_nodes)}"
    if facts.numa_bind and None in facts.gpu_nodes:
        return Finding("error", text, "say where they are: --numa-bind-nodes")
    return ok(text) if facts.numa_bind else Finding("note", text, "--numa-bind keeps each worker beside its GPU")


def memory(facts: Facts) -> Finding:
    text = f"{facts.free_bytes / GIB:.1f} of {facts.total_bytes / GIB:.1f} GiB of host memory are free"
    return ok(text) if facts.free_bytes >= LEAST_FREE_BYTES else Finding("warning", text, "end other programs, or raise the limit")


def shared_memory(facts: Facts) -> Finding | None:
    if facts.shm_bytes is None:
        return None
    text = f"/dev/shm has {facts.shm_bytes / MIB:,.0f} MiB"
    if facts.num_workers == 1 or not facts.gpus or facts.shm_bytes >= LEAST_SHM_BYTES:
        return ok(text)
    return Finding("error", f"{text}, too little for NCCL between {facts.num_workers} GPUs", "docker run --shm-size 1g, or --ipc host")


def locked_memory(facts: Facts) -> Finding:
    if facts.memlock_bytes < 0:
        return ok("memory may be locked without limit")
    text = f"{facts.memlock_bytes / MIB:,.0f} MiB of memory may be locked"
    if facts.infiniband and facts.hosts > 1:
        return Finding("error", f"{text}: too little for InfiniBand", "ulimit -l unlimited (docker run --ulimit memlock=-1)")
    return ok(text)


def open_files(facts: Facts) -> Finding:
    if 0 <= facts.num_files < LEAST_FILES:
        text = f"{facts.num_files:,} files may be open at once, and each connection is one"
        return Finding("warning", text, "ulimit -n 65536 before the server starts")
    return ok("no limit on open files" if facts.num_files < 0 else f"{facts.num_files:,} files may be open at once")


CHECKS: dict[str, Check] = {
    "cores": cores, "hyper-threading": hyper_threading, "cpuset": cpuset, "CPU quota": quota, "NUMA": numa, "memory": memory,
    "shared memory": shared_memory, "locked memory": locked_memory, "open files": open_files,
}  # fmt: skip
