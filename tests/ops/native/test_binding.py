"""Building, threads and processes around the C kernels."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from octavo import env
from octavo.ops.native import binding, build
from octavo.ops.native.binding import Native
from octavo.ops.native.twins import Twins

WORK = torch.randn(64, 300), torch.randn(200, 300)


def product_is_right(native: Native) -> bool:
    x, weight = WORK
    return torch.allclose(Twins(native).linear(x, weight, None), x @ weight.T, atol=1e-4)


def test_a_build_is_reused_and_keyed_by_its_flags(tmp_path: Path) -> None:
    names = {build.library_name(variant, extra) for variant in build.VARIANTS for extra in ((), ("-DX",))}
    assert len(names) == 2 * len(build.VARIANTS)
    made = tmp_path / "native" / build.library_name(build.PLAIN)
    made.parent.mkdir()
    made.write_bytes(b"there")
    assert build.build(tmp_path, build.PLAIN) == made
    assert made.read_bytes() == b"there"


def test_what_was_built_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.build(env.cache_root(), build.PLAIN)
    monkeypatch.setenv("PATH", str(tmp_path))
    native = Native(env.cache_root(), 1, variant="plain")
    assert product_is_right(native)
    native.close()


def test_a_shipped_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(build, "VARIANTS", (build.PLAIN,))
    monkeypatch.setattr(build, "_call", lambda *command: Path(command[-1]).touch())
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "octavo-plain-of-an-older-source.so").touch()
    build.main()
    name = build.library_name(build.PLAIN)
    assert [file.name for file in (tmp_path / "shipped").iterdir()] == [name]
    assert build.build(tmp_path / "cache", build.PLAIN) == tmp_path / "shipped" / name
    assert not (tmp_path / "cache").exists()


def test_a_library_that_does_not_load_here_is_compiled_anew(tmp_path: Path) -> None:
    alien = tmp_path / "native" / build.library_name(build.PLAIN)
    alien.parent.mkdir()
    alien.write_bytes(b"of another kind of machine")
    native = Native(tmp_path, 1, variant="plain")
    assert product_is_right(native)
    native.close()


def test_builders_at_once_do_not_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "library.c").write_text("int answer(void) { return 42; }")
    (source / "team.c").write_text("")
    monkeypatch.setattr(build, "SOURCE", source)
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build.build(tmp_path, build.PLAIN), range(8)))
    assert paths == set((tmp_path / "native").iterdir())
    assert len(paths) == 1


def test_without_a_compiler_torch_serves_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path))
    binding.shared_native.cache_clear()
    try:
        assert binding.shared_native() is None
        assert "no C compiler" in caplog.text
    finally:
        binding.shared_native.cache_clear()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\necho no such flag >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(build.CompilerError, match="no such flag"):
        build.build(tmp_path / "cache", build.PLAIN)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_any_number_of_threads(num_threads: int) -> None:
    native = Native(env.cache_root(), num_threads)
    assert product_is_right(native)
    native.close()
    assert product_is_right(native), "an operation after close starts the threads anew"
    native.close()


def lanes() -> list[int]:
    """Ids of the threads of all teams in this process, callers left out."""
    tasks = map(int, os.listdir("/proc/self/task"))
    return [task for task in tasks if Path(f"/proc/self/task/{task}/comm").read_text().startswith("octavo")]


def test_pinned_threads_run_on_their_cores() -> None:
    before, core, others = os.sched_getaffinity(0), max(os.sched_getaffinity(0)), set(lanes())
    native = Native(env.cache_root(), 2, cores=[core, core])
    try:
        assert [os.sched_getaffinity(task) for task in (0, *(task for task in lanes() if task not in others))] == [{core}, {core}]
    finally:
        os.sched_setaffinity(0, before)
        native.close()


def test_callers_in_several_threads_take_turns() -> None:
    native = Native(env.cache_root(), 2)
    right: list[bool] = []
    callers = [threading.Thread(target=lambda: right.extend(product_is_right(native) for _ in range(50))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [True] * 200
    native.close()


def test_a_forked_child_has_its_own_team() -> None:
    native = Native(env.cache_root(), 2)
    assert product_is_right(native)
    child = os.fork()
    if child == 0:
        os._exit(0 if product_is_right(native) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert product_is_right(native)
    native.close()


def test_idle_threads_sleep() -> None:
    others = set(lanes())
    native = Native(env.cache_root(), 3)
    assert product_is_right(native)
    threading.Event().wait(0.2)
    mine = [task for task in lanes() if task not in others]
    assert [Path(f"/proc/self/task/{task}/stat").read_text().rsplit(")", 1)[1].split()[0] for task in mine] == ["S", "S"]
    native.close()


def test_an_older_compiler_gives_the_next_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = build.Variant("newest", frozenset(), ("-march=abacus",))
    monkeypatch.setattr(build, "VARIANTS", (newest, build.PLAIN))
    native = Native(env.cache_root(), 1)
    assert native.variant == "plain"


@pytest.mark.parametrize(("flags", "best"), [
    ("fpu sse2", "plain"), ("avx2 fma f16c", "avx2"), ("avx2 fma", "plain"),
    ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni", "avx512"),
    ("avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 amx_tile", "avx512bf16"),
])  # fmt: skip
def test_the_processor_decides(tmp_path: Path, flags: str, best: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\nprocessor : 1\n")
    assert next(iter(build.machine_variants(tmp_path / "cpuinfo"))) == best
    assert list(build.machine_variants(tmp_path / "missing")) == ["plain"]


@pytest.mark.parametrize(("granted", "best"), [(True, "amx"), (False, "avx512bf16")])
def test_tiles_are_for_processes_that_the_system_grants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: bool, best: str
) -> None:
    flags = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(build, "tiles_granted", lambda: granted)
    assert next(iter(build.machine_variants(tmp_path / "cpuinfo"))) == best


def test_a_processor_of_another_machine_decides_likewise(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor	: 0\nFeatures\t: fp asimd evtstrm asimddp\n")
    assert list(build.machine_variants(tmp_path / "cpuinfo")) == ["dotprod", "plain"]


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this machine runs .*plain"):
        Native(env.cache_root(), 1, variant="abacus")
