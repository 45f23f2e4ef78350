"""Where compiling is forbidden, what is missing is an error that names it, and nothing falls back to something slower."""

import pytest

from octavo.miss import CacheMiss
from octavo.ops.native.build import PLAIN, build


@pytest.fixture
def forced(monkeypatch):
    monkeypatch.setenv("OCTAVO_FORCE_AOT_LOAD", "1")


def test_of_c_kernels(forced, tmp_path):
    with pytest.raises(CacheMiss, match=r"octavo-plain-\w+\.so"):
        build(tmp_path, PLAIN, ("-DNOBODY_BUILT_THIS",))


def test_of_triton_s_kernels_and_what_calls_them(forced, tmp_path, monkeypatch):
    knobs = pytest.importorskip("triton.knobs", reason="Triton is not on this machine")
    from octavo.ops.triton.cache import MovableCache

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    cache = MovableCache("key")
    with pytest.raises(CacheMiss, match="kernel _embedding"):
        cache.get_group("_embedding.json")
    with pytest.raises(CacheMiss, match="launcher"):
        cache.get_file("__triton_launcher.so")
    cache.put(b"", "_embedding.cubin")
    assert cache.get_file("_embedding.cubin")
