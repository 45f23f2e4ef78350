"""The FlashInfer backend over a stand-in for the library: the part of its interface that is used, written in torch from its documentation
(flashinfer-python 0.6.2: BatchPrefillWithPagedKVCacheWrapper, BatchDecodeWithPagedKVCacheWrapper), which refuses what the library would."""

import random
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from octavo.attention import flashinfer
from octavo.attention.backend import AttentionShape, Needs, refusal
from octavo.attention.flashinfer import FlashInferAttention
from octavo.attention.reference import ReferenceAttention
from octavo.attention.registry import BACKENDS, backend_for
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from tests.attention.test_reference import make_batch

DECODES = [(2, 1, 40), (0, 1, 5), (3, 1, 70), (1, 1, 1)]  # row, count, length
MIXED = [(2, 1, 35), (0, 19, 19), (3, 18, 45), (4, 2, 30)]
NEEDS = Needs("cuda", frozenset({"paged", "window"}), frozenset({128}), "bfloat16", "bfloat16", sm=90)


class Wrapper:
    """Causal attention over pages, each slice's queries at the end of its keys."""

    def __init__(self, workspace, kv_layout, **_):
        assert workspace.dtype == torch.uint8
        assert kv_layout == "NHD"
        self.calls = 0

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk, page_size, *,
        causal=False, sm_scale, window_left, logits_soft_cap, q_data_type, kv_data_type,
    ):  # fmt: skip
        assert causal
        assert all(told.dtype == torch.int32 for told in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len))
        assert len(qo_indptr) == len(paged_kv_indptr) == len(paged_kv_last_page_len) + 1
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        assert (paged_kv_indptr.diff() >= 1).all()
        self.told = (qo_indptr, paged_kv_indptr, paged_kv_indices.long(), paged_kv_last_page_len)
        self.sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self.scale, self.window_left, self.cap, self.dtypes = sm_scale, window_left, logits_soft_cap, (q_data_type, kv_data_type)

    def run(self, q, paged_kv_cache, *, out):
        self.calls += 1
        heads, kv_heads, head_dim, page_size = self.sizes
        assert q.shape == (self.told[0][-1], heads, head_dim) == out.shape
        assert paged_kv_cache.shape[1:] == (2, page_size, kv_heads, head_dim)
        assert (q.dtype, paged_kv_cache.dtype) == self.dtypes
        for number, last in enumerate(self.told[3].tolist()):
            begin, end = self.told[0][number : number + 2].tolist()
            pages = self.told[2][slice(*self.told[1][number : number + 2].tolist())]
            length = (len(pages) - 1) * page_size + last
            k, v = paged_kv_cache[pages].float().movedim(1, 0).flatten(1, 2)[:, :length].repeat_interleave(heads // kv_heads, dim=2)
            scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), k) * self.scale
            if self.cap:
                scores = self.cap * (scores / self.cap).tanh()
            distance = torch.arange(length - (end - begin), length).unsqueeze(1) - torch.arange(length)  # of a query from a key
            hidden = (distance < 0) | ((distance > self.window_left) if self.window_left >= 0 else False)
            out[begin:end] = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v).to(out.dtype)
        return out


class DecodeWrapper(Wrapper):
    """One query a slice; it has no argument for causality."""

    def __init__(self, workspace, kv_layout, *, use_tensor_cores):
        super().__init__(workspace, kv_layout)
        self.use_tensor_cores = use_tensor_cores

    def plan(self, indptr, indices, last_page_len, *sizes, **others):
        super().plan(torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last_page_len, *sizes, causal=True, **others)


@pytest.fixture(autouse=True)
def library(monkeypatch):
    module = ModuleType("flashinfer")
    module.__spec__ = ModuleSpec("flashinfer", None)
    module.BatchPrefillWithPagedKVCacheWrapper, module.BatchDecodeWithPagedKVCacheWrapper = Wrapper, DecodeWrapper
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 8)


def compare(slices, shape, block_tokens, backend, padding=0):
    rng = random.Random(block_tokens)
    batch, width = make_batch(slices, padding), -(-80 // block_tokens)
    blocks = list(range(5 * width))
    rng.shuffle(blocks)
    table = torch.tensor(blocks, dtype=torch.int32).view(5, width)
    kv = torch.randn(5 * width, 2, block_tokens, shape.kv_heads, shape.head_dim)
    q = torch.randn(batch.num_tokens + padding, shape.heads + 2, shape.head_dim)[:, : shape.heads]  # a view of a packed product
    want = ReferenceAttention().run(ReferenceAttention().plan(batch, 0, table, block_tokens), q, kv, shape)
    if shape.window is not None:  # what no token looks at is gone, and its blocks too
        for row, count, length in slices:
            table[row, : max(0, length - count + 1 - shape.window) // block_tokens] = -10_000
    plan = backend.plan(batch, 0, table, block_tokens)
    for _ in range(2):
        torch.testing.assert_close(backend.run(plan, q, kv, shape), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_tokens", [8, 16, 128])
@pytest.mark.parametrize("slices", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (1, None), (11, 2.0), (1000, None)])
def test_every_step_is_told_as_the_library_wants_it(block_tokens, slices, window, softcap):
    torch.manual_seed(0)
    backend = FlashInferAttention()
    compare(slices, AttentionShape(6, 2, 16, 0.3, window, softcap), block_tokens, backend)
    compare(slices, AttentionShape(8, 2, 16, 0.3, window, softcap), block_tokens, backend, padding=3)
    assert {type(wrapper) for wrapper in backend._wrappers.values()} == {DecodeWrapper if slices == DECODES else Wrapper}
    assert all(wrapper.calls == 2 for wrapper in backend._wrappers.values())
    if slices == DECODES:
        assert [wrapper.use_tensor_cores for wrapper in backend._wrappers.values()] == [False, True]


def test_groups_and_shapes_of_a_step_have_wrappers_of_their_own():
    backend, q, kv = FlashInferAttention(), torch.randn(4, 2, 16), torch.randn(8, 2, 16, 1, 16)
    table = torch.arange(8, dtype=torch.int32).view(4, 2)
    batch = make_batch([(row, 1, 20) for row in range(4)])
    plans = [backend.plan(batch, 0, table, 16), backend.plan(batch, 1, table.flip(0), 16)]
    shapes = [AttentionShape(2, 1, 16, 0.3), AttentionShape(2, 1, 16, 0.3, window=3)]
    reference = ReferenceAttention()
    for plan in (*plans, *plans):
        for shape in shapes:
            want = reference.run(reference.plan(batch, 0, plan.block_table, 16), q, kv, shape)
            torch.testing.assert_close(backend.run(plan, q, kv, shape), want, atol=1e-5, rtol=1e-5)
    assert len(backend._wrappers) == 4


def test_a_step_of_padding_alone_does_nothing():
    backend = FlashInferAttention()
    batch = make_batch([(0, 0, 0)], padding=2)
    out = backend.run(backend.plan(batch, 0, torch.zeros(1, 1, dtype=torch.int32), 16), torch.randn(2, 2, 16), torch.randn(1, 2, 16, 1, 16),
                      AttentionShape(2, 1, 16, 0.3))  # fmt: skip
    assert not out.any()


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"kinds": frozenset({"latent"})}, "KV kind latent"),
        ({"head_dims": frozenset({96})}, "head_dim 96"),
        ({"dtype": "float32"}, "dtype float32"),
        ({"kv_dtype": "int8"}, "KV dtype int8"),
        ({"sinks": True}, "sinks"),
        ({"sm": 75}, "8.0"),
        ({"graphs": True}, "--enforce-eager"),
        ({"invariant": True}, "--batch-invariant"),
        ({"drafts_with_overlap": True}, "speculation"),
    ],
)
def test_what_it_cannot_do_is_refused(needs, said):
    from dataclasses import replace

    assert said in (refusal(FlashInferAttention().supports, replace(NEEDS, **needs)) or "")
    assert refusal(FlashInferAttention().supports, NEEDS) is None


def test_only_who_asks_gets_it():
    assert backend_for("flashinfer", NEEDS).backend.name == "flashinfer"
    choice = backend_for("auto", NEEDS)
    assert choice.backend.name != "flashinfer"
    assert "only where it is asked for" in choice.refused["flashinfer"]


def test_where_it_is_not_installed_that_is_told(monkeypatch):
    monkeypatch.setattr(flashinfer, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install flashinfer-python"):
        backend_for("flashinfer", NEEDS)


def test_it_is_refused_where_nothing_may_be_compiled(monkeypatch):
    monkeypatch.setenv("OCTAVO_FORCE_AOT_LOAD", "1")
    with pytest.raises(ValueError, match="forbids compiling"):
        backend_for("flashinfer", NEEDS)


def test_its_name_may_be_written_as_in_vllm():
    from octavo.attention.registry import choose_attention
    from octavo.config.resolved import Resolved
    from tests.parity.tiny import tiny

    assert EngineConfig.from_flags(attention_backend="FLASHINFER").compilation.attention_backend == "FLASHINFER"
    with pytest.raises(ConfigError, match="only cuda"):
        choose_attention(tiny(), Resolved(device="cpu", attention_backend="FLASHINFER"), sm=0)
    assert "flashinfer" in BACKENDS.names()
