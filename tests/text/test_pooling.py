"""From the engine's state to a vector: its length, its parts, and what a request that failed tells."""

import math
import struct

import pytest

from octavo.text.pooling import EmbeddingSpace, EngineFailed, PoolingState, as_bytes, cosine
from octavo.types import FinishReason, InvalidRequest, Request, SequenceOutput

POOLED = struct.pack("<4f", 3, 4, 12, 84)


def test_a_vector_has_length_one_and_so_have_its_leading_parts() -> None:
    space = EmbeddingSpace(4, shorter=(2,))
    assert list(space.vector(POOLED, normalize=False)) == [3, 4, 12, 84]
    assert list(space.vector(POOLED, 2)) == pytest.approx([0.6, 0.8])
    whole = space.vector(POOLED)
    assert math.hypot(*whole) == pytest.approx(1)
    assert cosine(whole, whole) == pytest.approx(1)
    assert struct.unpack("<4f", as_bytes(whole)) == tuple(whole)
    assert list(space.vector(struct.pack("<2f", 0, 0))) == [0, 0]


def test_what_a_model_says_of_its_vectors() -> None:
    assert EmbeddingSpace.of(8, {}, {}) == EmbeddingSpace(8, "last", ())
    assert EmbeddingSpace.of(8, {"matryoshka_dimensions": [2, 4]}, {"pooling_mode_mean_tokens": True}) == EmbeddingSpace(8, "mean", (2, 4))
    assert EmbeddingSpace.of(8, {"is_matryoshka": True}, {"pooling_mode_mean_tokens": True}, "last") == EmbeddingSpace(8, "last", None)


@pytest.mark.parametrize(
    ("shorter", "good", "bad", "told"),
    [
        ((), (None, 8), (1, 4, 0, -1, 9), "8, the model's own"),
        ((2, 4), (2, 4, 8), (1, 3, 9), "2, 4 or 8"),
        (None, (1, 7, 8), (0, 9), "1 to 8"),
    ],
)
def test_lengths_that_vectors_can_have(shorter: tuple[int, ...] | None, good: tuple[int, ...], bad: tuple[int, ...], told: str) -> None:
    space = EmbeddingSpace(8, shorter=shorter)
    for dimensions in good:
        space.check(dimensions)
    for dimensions in bad:
        with pytest.raises(InvalidRequest, match=told):
            space.check(dimensions)


def state() -> PoolingState:
    space = EmbeddingSpace(4)
    return PoolingState(Request("r", (1, 2), space.params()), space, clock=lambda: 5.0)


def test_the_vector_comes_with_the_end() -> None:
    one = state()
    assert one.feed([SequenceOutput("r", 0, prompt_logprobs=())]) == (None, [])
    output, stopped = one.feed([SequenceOutput("r", 0, (7,), finish_reason=FinishReason.LENGTH, num_cached_tokens=1, pooled=POOLED)])
    assert output is not None
    assert (output.num_cached_tokens, output.prompt_token_ids, stopped, one.finished) == (1, [1, 2], [], True)
    assert one.metrics.finished_time == 5.0
    assert one.num_output_tokens == 0


def test_a_request_that_fails_says_why() -> None:
    for news in (SequenceOutput("r", 0, finish_reason=FinishReason.ERROR, stop_reason="logits are not finite"),):
        with pytest.raises(EngineFailed, match="not finite"):
            state().feed([news])
    with pytest.raises(EngineFailed, match="aborted"):
        state().abort()
