from __future__ import annotations

import pytest

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.types import MediaItem, Request, SamplingParams
from tests.laws.drive import Engine, Told
from tests.laws.fake import FakeModel, make_layout

BLOCK = 4


def engine(num_blocks: int = 64, windows: tuple[int | None, ...] = (None,), **settings: object) -> Engine:
    base = {"max_model_len": 64, "block_size": BLOCK, "max_num_seqs": 4, "max_num_batched_tokens": 64, "overlap_depth": 0}
    return Engine(Resolved(**{**base, **settings}), make_layout(num_blocks, BLOCK, windows), FakeModel(32, windows))  # type: ignore[arg-type]


def run(engine: Engine, name: str, prompt: list[int], **request: object) -> Told:
    params = request.pop("params", None) or SamplingParams(seed=0, max_tokens=1)
    engine.add(Request(name, tuple(prompt), params, **request))  # type: ignore[arg-type]
    engine.run()
    return engine.told[name, 0]


PROMPT = list(range(1, 15))  # three blocks and a half


def test_a_prefix_seen_before_is_not_computed_again() -> None:
    it = engine()
    assert run(it, "a", PROMPT).num_cached_tokens == 0
    told = run(it, "b", [*PROMPT, 20, 21])
    assert told.num_cached_tokens == 12
    assert it.plans[-1].num_tokens == 4
    assert (it.cache.queries, it.cache.hits) == (14 + 16, 12)
    it.check_texts()


def test_a_hit_leaves_one_token_to_compute() -> None:
    it = engine()
    run(it, "a", PROMPT[:12])
    assert run(it, "b", PROMPT[:12]).num_cached_tokens == 8
    assert run(it, "c", PROMPT[:13]).num_cached_tokens == 12


def test_output_is_found_by_the_next_turn() -> None:
    it = engine()
    first = run(it, "a", PROMPT, params=SamplingParams(seed=0, max_tokens=9))
    told = run(it, "b", [*PROMPT, *first.tokens, 7])
    assert told.num_cached_tokens == 20  # 22 of the 23 tokens have been computed
    it.check_texts()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({}, {"cache_salt": ""}),
        ({"adapter": "lora#1"}, {"adapter": "lora#2"}),
        ({}, {"adapter": "lora#1"}),
        ({"media": (MediaItem("image", "x", 2, 3),)}, {"media": (MediaItem("image", "y", 2, 3),)}),
    ],
)
def test_another_scope_never_hits(first: dict[str, object], second: dict[str, object]) -> None:
    it = engine()
    run(it, "a", PROMPT, **first)
    assert run(it, "b", PROMPT, **second).num_cached_tokens == 0
    assert run(it, "c", PROMPT, **first).num_cached_tokens == 12
    assert run(it, "d", PROMPT, **second).num_cached_tokens == 12


def test_prompt_logprobs_ignore_hits_and_are_whole() -> None:
    it = engine()
    run(it, "a", PROMPT)
    told = run(it, "b", PROMPT, params=SamplingParams(seed=0, max_tokens=1, prompt_logprobs=1))
    assert told.num_cached_tokens == 0
    assert told.cache_miss is not None
    assert told.cache_miss.startswith("off")
    assert told.prompt_logprobs == PROMPT[1:]


def test_caching_off_finds_nothing() -> None:
    it = engine(enable_prefix_caching=False)
    run(it, "a", PROMPT)
    told = run(it, "b", PROMPT)
    assert (told.num_cached_tokens, told.cache_miss, it.cache.queries, it.cache.pool.num_cached) == (0, None, 0, 0)


@pytest.mark.parametrize("caching", [True, False])
def test_continuations_share_the_blocks_of_the_prompt(caching: bool) -> None:
    it = engine(enable_prefix_caching=caching)
    it.add(Request("a", tuple(PROMPT), SamplingParams(n=3, seed=1, max_tokens=8)))
    it.step()
    it.step()
    it.step()
    tables = [seq.blocks[0] for seq in it.scheduler.running]
    assert len(tables) == 3
    assert tables[0][:3] == tables[1][:3] == tables[2][:3]
    assert len({block for table in tables for block in table[3:]}) == sum(len(table) - 3 for table in tables)
    it.run()
    it.check_texts()
    assert len({tuple(it.told["a", i].tokens) for i in range(3)}) == 3


def test_continuations_wait_for_the_whole_prompt() -> None:
    it = engine(max_num_batched_tokens=5)
    it.add(Request("a", tuple(PROMPT), SamplingParams(n=2, seed=1, max_tokens=8)))
    it.run()
    it.check_texts()
    assert [it.told["a", index].num_cached_tokens for index in range(2)] == [0, 12]


def test_a_window_gives_its_leading_blocks_back() -> None:
    it = engine(windows=(6,), max_num_batched_tokens=8)
    it.add(Request("a", tuple(PROMPT), SamplingParams(seed=0, max_tokens=40)))
    most = 0
    while it.scheduler.has_work or it.flight:
        it.step()
        most = max(most, sum(count > 0 for count in it.cache.pool.users))
    assert most <= it.cache.layout.peak_blocks(64, 8) == 5
    it.check_texts()


def test_a_hybrid_hit_is_what_every_group_can_use() -> None:
    it = engine(num_blocks=40, windows=(None, 5))
    run(it, "a", list(range(1, 26)))  # six whole blocks in each group, registered before the window moved on
    assert run(it, "b", list(range(1, 26))).num_cached_tokens == 24
    window_blocks = {}
    for block in range(40):
        content = it.cache.pool.content(block)
        if content is not None and content[0] == 1:
            depth, node = -1, content[1]
            while node.parent is not None:
                depth, node = depth + 1, node.parent
            window_blocks[depth] = block
    it.cache.pool.forget(window_blocks[5])
    it.cache.pool.forget(window_blocks[4])
    assert run(it, "c", list(range(1, 26))).num_cached_tokens == 16
    it.check_texts()


def test_reset_forgets_but_not_under_running_sequences() -> None:
    it = engine()
    it.add(Request("a", tuple(PROMPT), SamplingParams(seed=0, max_tokens=4)))
    it.step()
    assert not it.scheduler.reset_prefix_cache()
    it.run()
    assert it.scheduler.reset_prefix_cache()
    assert run(it, "b", PROMPT).num_cached_tokens == 0


def test_a_stub_collision_joins_nothing() -> None:
    settings = Resolved(max_model_len=64, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=64)
    layout = make_layout(64, BLOCK)
    for digest in (lambda data: b"same", lambda data: data[-16:], lambda data: data[:4]):
        cache = KVCache(layout, digest=digest)
        it = Engine(settings, layout, FakeModel(), cache=cache)
        for i in range(6):
            it.add(Request(f"r{i}", tuple([i % 3, *PROMPT[1:]]), SamplingParams(seed=0, max_tokens=6)))
        it.run()
        it.check_texts()
    assert cache.collisions > 0


class TestMisses:
    def test_a_full_hit_and_a_prompt_under_a_block_say_nothing(self) -> None:
        it = engine()
        run(it, "a", PROMPT)
        assert run(it, "b", PROMPT).cache_miss is None
        assert run(it, "c", [9, 9]).cache_miss is None

    def test_new(self) -> None:
        it = engine()
        told = run(it, "a", PROMPT)
        assert told.cache_miss == "new: nothing is cached from token 0 on, block 0"
        told = run(it, "b", [*PROMPT[:12], 1, 1, 1, 1, 1])
        assert told.cache_miss == "new: nothing is cached from token 12 on, block 3"
        assert it.cache.misses.counts == {"new": 2}

    def test_tokens_with_the_place_of_the_difference(self) -> None:
        it = engine()
        run(it, "a", PROMPT)
        told = run(it, "b", [*PROMPT[:6], 30, *PROMPT[7:]])
        assert told.num_cached_tokens == 4
        assert told.cache_miss == "tokens: differs from what is cached at token 6, in block 1"

    def test_shared_but_under_one_block(self) -> None:
        it = engine()
        run(it, "a", PROMPT)
        told = run(it, "b", [*PROMPT[:3], 30, *PROMPT[4:]])
        assert told.cache_miss is not None
        assert "3 shared tokens are under one block of 4" in told.cache_miss
        assert it.scheduler.stats()["prefix_misses_short"] == 1
        assert it.scheduler.stats()["prefix_match_tokens"] == 4

    def test_another_salt_is_counted_but_not_told(self) -> None:
        it = engine()
        run(it, "a", PROMPT, cache_salt="one")
        told = run(it, "b", PROMPT, cache_salt="two")
        assert told.cache_miss == "new: nothing is cached from token 0 on, block 0"
        assert it.cache.misses.counts == {"new": 1, "scope": 1}

    def test_evicted(self) -> None:
        it = engine(num_blocks=16)
        run(it, "a", PROMPT)
        run(it, "b", [31] * 63)
        told = run(it, "c", PROMPT)
        assert told.cache_miss == "evicted: block 0 (from token 0) was cached and has been given up for space"

    def test_media(self) -> None:
        it = engine()
        run(it, "a", PROMPT, media=(MediaItem("image", "x", 5, 2),))
        told = run(it, "b", PROMPT, media=(MediaItem("image", "y", 5, 2),))
        assert told.cache_miss == "tokens: media differ, in block 1"


def test_a_prompt_is_hashed_as_far_as_it_is_needed() -> None:
    it = engine(num_blocks=200, max_model_len=512)
    it.add(Request("a", tuple(i % 31 + 1 for i in range(500)), SamplingParams(seed=0, max_tokens=1)))
    lengths = []
    for _ in range(3):
        it.step()
        lengths.append(len(it.scheduler.running.items[0].chain))
    assert lengths == [16, 32, 48]
