"""Each check on machines that are sound and on machines that are not."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.doctor.examine import CHECKS, examine
from octavo.doctor.finding import Facts
from octavo.doctor.software import NEEDED, SERVING
from octavo.host.nvml import Driver, Gpu
from octavo.host.topology import Topology

GIB = 1 << 30
EIGHT = Topology({0: tuple(range(8))}, {})
SOCKETS = Topology({0: tuple(range(8)), 1: tuple(range(8, 16))}, {})
THREADS = Topology({0: tuple(range(8))}, {cpu: (cpu // 2 * 2, cpu // 2 * 2 + 1) for cpu in range(8)})
GPUS = tuple(Gpu(index, f"GPU-{index}", f"0000:{index}b:00.0", "NVIDIA H200", 140 * GIB, 139 * GIB, 18) for index in range(2))
VERSIONS = {name: "1.0" for name in (*NEEDED, *SERVING)}
CPU = Facts(
    machine=EIGHT, allowed=frozenset(range(8)), quota=None, total_bytes=32 * GIB, free_bytes=30 * GIB, shm_bytes=64 << 20, memlock_bytes=-1,
    num_files=65536, driver=None, gpus=(), gpu_nodes=(), infiniband=(), peer_memory=False, torch_cuda=None, torch_gpus=0, versions=VERSIONS,
    cache_root=Path("/tmp/octavo"), environment={}, host="127.0.0.1", port=0,
)  # fmt: skip
CUDA = replace(
    CPU, driver=Driver("580.1", (13, 0), GPUS), gpus=GPUS, gpu_nodes=(0, 0), torch_cuda="13.0", torch_gpus=2, shm_bytes=GIB, tensor=2
)


@pytest.mark.parametrize("facts", [CPU, CUDA])
def test_a_sound_machine_is_told_so(facts: Facts) -> None:
    found = examine(facts)
    assert {name: finding for name, finding in found.items() if finding.severity != "ok"} == {}
    assert set(found) == set(CHECKS) - {"network"} - (set() if facts.gpus else {"GPUs", "GPU memory", "NVLink"})


@pytest.mark.parametrize(("name", "facts", "severity", "says"), [
    ("cores", replace(CUDA, allowed=frozenset({0, 1})), "warning", "2 physical cores may be used, and this layout keeps 4 busy"),
    ("cores", replace(CUDA, data=2, tensor=1, quota=3.0), "warning", "3 physical .* 7 busy .*2 for HTTP, 2 for engines, 2 for workers, 1"),
    ("hyper-threading", replace(CPU, machine=THREADS), "note", "8 logical CPUs are 4 cores"),
    ("cpuset", replace(CPU, allowed=frozenset({1, 2})), "note", "CPUs 1-2 of 0-7"),
    ("CPU quota", replace(CPU, quota=2.5), "warning", "2.5 cores' time on 8 CPUs"),
    ("NUMA", replace(CUDA, machine=SOCKETS, gpu_nodes=(0, 1)), "note", "1 has CPUs 8-15; GPUs are on 0, 1 .*--numa-bind keeps"),
    ("NUMA", replace(CUDA, machine=SOCKETS, gpu_nodes=(0, None), numa_bind=True), "error", r"on 0, \? .*--numa-bind-nodes"),
    ("NUMA", replace(CPU, machine=SOCKETS), "note", "Workers on the CPU get a node each"),
    ("memory", replace(CPU, free_bytes=GIB), "warning", "1.0 of 32.0 GiB"),
    ("shared memory", replace(CUDA, shm_bytes=64 << 20), "error", "64 MiB, too little for NCCL between 2 GPUs .*--shm-size"),
    ("locked memory", replace(CUDA, memlock_bytes=8 << 20, infiniband=("mlx5_0",), hosts=2), "error", "8 MiB .*ulimit -l unlimited"),
    ("open files", replace(CPU, num_files=1024), "warning", "1,024 files .*ulimit -n"),
    ("driver", replace(CUDA, driver=None), "note", "no NVIDIA driver answers"),
    ("torch", replace(CUDA, torch_cuda="14.1"), "error", "built for CUDA 14.1, and the driver goes to 13.0"),
    ("torch", replace(CUDA, torch_cuda=None), "error", "built for CPU, and there are GPUs"),
    ("GPUs", replace(CUDA, torch_gpus=1), "error", "2 of 2 GPUs may be used, and torch sees 1"),
    ("GPUs", replace(CUDA, gpus=GPUS[:1], torch_gpus=1), "error", "1 of 2 GPUs .* needs 2 on this host"),
    ("GPU memory", replace(CUDA, gpus=(GPUS[0], replace(GPUS[1], free_bytes=10 * GIB))), "warning", "10.0 of 140.0 GiB free on GPU 1"),
    ("NVLink", replace(CUDA, gpus=(GPUS[0], replace(GPUS[1], num_links=0))), "warning", "no NVLink on 1 of 2 GPUs.*-pp in place of -tp"),
    ("NVLink", replace(CUDA, gpus=(GPUS[0], replace(GPUS[1], num_links=0)), tensor=1), "note", "prefer -pp or -dp to -tp"),
    ("network", replace(CUDA, hosts=2), "warning", "over sockets"),
    ("network", replace(CUDA, hosts=2, infiniband=("mlx5_0",)), "warning", "mlx5_0, through host memory .*nvidia_peermem"),
    ("network", replace(CUDA, hosts=2, infiniband=("mlx5_0",), peer_memory=True), "ok", "straight from GPU memory"),
    ("packages", replace(CPU, versions={"torch": "2"}), "error", "not installed: numpy, .*pip install numpy"),
    ("packages", replace(CPU, versions={name: "1" for name in NEEDED}), "note", "octavo serve: starlette"),
    ("environment", replace(CPU, environment={"OCTAVO_CPU_KVCACHE_SPCE": "3"}), "warning", "did you mean OCTAVO_CPU_KVCACHE_SPACE"),
    ("environment", replace(CPU, environment={"OMP_NUM_THREADS": "two"}), "error", "OMP_NUM_THREADS = 'two' is not possible"),
    ("environment", replace(CPU, environment={"VLLM_CPU_KVCACHE_SPACE": "2", "HOME": "/x"}), "ok", "set: VLLM_CPU_KVCACHE_SPACE$"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_what_to_do(name: str, facts: Facts, severity: str, says: str) -> None:
    finding = CHECKS[name](facts)
    assert finding is not None
    assert finding.severity == severity
    assert (severity == "ok") == (finding.advice == "")
    assert re.search(says, f"{finding.text} {finding.advice}".strip())


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = CHECKS["port"](replace(CPU, port=taken.getsockname()[1]))
    assert (finding.severity, "Address already in use" in finding.text) == ("error", True)
    assert CHECKS["port"](replace(CPU, host="192.0.2.1")).severity == "error"


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("octavo.doctor.software.SHIPPED", tmp_path)
    empty = tmp_path / "cache"
    assert CHECKS["compiler"](replace(CPU, cache_root=empty)).severity == "warning"
    assert CHECKS["compiler"](replace(CUDA, cache_root=empty)).severity == "error"
    from octavo.ops.native.build import library_name, machine_variants

    (tmp_path / library_name(next(iter(machine_variants().values())))).touch()
    assert CHECKS["compiler"](replace(CPU, cache_root=empty)).severity == "ok"


def test_a_cache_folder_that_cannot_be_written_to() -> None:
    finding = CHECKS["cache folder"](replace(CPU, cache_root=Path("/proc/octavo")))
    assert (finding.severity, "OCTAVO_CACHE_ROOT" in finding.advice) == ("error", True)
