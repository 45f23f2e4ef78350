"""Checks of GPUs, their driver and what joins them."""

from __future__ import annotations

from octavo.doctor.finding import Check, Facts, Finding, ok

GIB = 1 << 30
MOSTLY_FREE = 0.9


def driver(facts: Facts) -> Finding:
    if facts.driver is not None:
        major, minor = facts.driver.cuda
        return ok(f"driver {facts.driver.version}, up to CUDA {major}.{minor}, {len(facts.driver.gpus)} GPUs")
    if facts.torch_cuda is None:
        return ok("no NVIDIA driver; models run on the CPU")
    return Finding("note", "no NVIDIA driver answers; models run on the CPU", "install the driver; in a container, docker run --gpus all")


def torch_build(facts: Facts) -> Finding | None:
    if "torch" not in facts.versions:
        return None
    if facts.torch_cuda is None:
        text = f"torch {facts.versions['torch']} is built for CPU"
        return Finding("error", f"{text}, and there are GPUs", "install torch's CUDA build (pytorch.org)") if facts.gpus else ok(text)
    text = f"torch {facts.versions['torch']} is built for CUDA {facts.torch_cuda}"
    if facts.driver is not None and int(facts.torch_cuda.split(".")[0]) > facts.driver.cuda[0]:
        fix = "update the driver, or install a torch built for an older CUDA"
        return Finding("error", f"{text}, and the driver goes to {facts.driver.cuda[0]}.{facts.driver.cuda[1]}", fix)
    return ok(text)


def visible_gpus(facts: Facts) -> Finding | None:
    if facts.driver is None or not facts.driver.gpus:
        return None
    text = f"{len(facts.gpus)} of {len(facts.driver.gpus)} GPUs may be used"
    if facts.torch_cuda is not None and facts.torch_gpus != len(facts.gpus):
        return Finding("error", f"{text}, and torch sees {facts.torch_gpus}", "look at CUDA_VISIBLE_DEVICES and at nvidia-smi")
    if len(facts.gpus) < facts.num_workers:
        return Finding("error", f"{text}, and this layout needs {facts.num_workers} on this host", "smaller sizes, or more hosts")
    return ok(text)


def gpu_memory(facts: Facts) -> Finding | None:
    if not facts.gpus:
        return None
    taken = [gpu for gpu in facts.gpus if gpu.free_bytes < MOSTLY_FREE * gpu.total_bytes]
    if taken:
        text = ", ".join(f"{gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free on GPU {gpu.index}" for gpu in taken)
        return Finding("warning", text, "end the other programs (nvidia-smi), or lower --gpu-memory-utilization")
    return ok(f"{facts.gpus[0].name}: at least {min(gpu.free_bytes for gpu in facts.gpus) / GIB:.1f} GiB free on each")


def nvlink(facts: Facts) -> Finding | None:
    if len(facts.gpus) < 2:
        return None
    links = [gpu.num_links for gpu in facts.gpus]
    if min(links):
        return ok(f"NVLink: {min(links)} links or more on each GPU")
    text = f"no NVLink on {links.count(0)} of {len(links)} GPUs"
    if facts.tensor > 1:
        return Finding("warning", f"{text}: each layer's sums go over the bus", "-pp in place of -tp")
    return Finding("note", text, "prefer -pp or -dp to -tp")


def network(facts: Facts) -> Finding | None:
    if facts.hosts == 1 or not facts.gpus:
        return None
    if not facts.infiniband:
        return Finding("warning", "no InfiniBand or RoCE device: NCCL talks to other hosts over sockets", "docker run --device")
    text = f"NCCL talks over {', '.join(facts.infiniband)}"
    if not facts.peer_memory:
        return Finding("warning", f"{text}, through host memory", "load nvidia_peermem, so that cards read GPU memory themselves")
    return ok(f"{text}, straight from GPU memory")


CHECKS: dict[str, Check] = {
    "driver": driver, "torch": torch_build, "GPUs": visible_gpus, "GPU memory": gpu_memory, "NVLink": nvlink, "network": network,
}  # fmt: skip
