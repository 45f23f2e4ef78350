"""Workloads are the same for everybody who draws them."""

import pytest

from octavo.bench.workloads import CASES, Workload, draw, read_length


def test_the_mixed_case_has_the_token_counts_that_others_were_measured_with() -> None:
    drawn = draw(CASES["nano"], vocab_size=151_936, seed=1)
    assert (drawn.num_input_tokens, sum(drawn.output_lens)) == (139_302, 143_515)


@pytest.mark.parametrize(
    ("name", "requests", "tokens_in", "tokens_out"),
    [("lat1", 1, 32, 256), ("lat8", 8, 128, 256), ("dec64", 64, 128, 256), ("dec256", 256, 128, 256), ("w2", 1000, 512, 128),
     ("pre", 64, 4096, 1)],
)  # fmt: skip
def test_fixed_cases(name: str, requests: int, tokens_in: int, tokens_out: int) -> None:
    drawn = draw(CASES[name], vocab_size=151_936)
    assert {len(prompt) for prompt in drawn.prompts} == {tokens_in}
    assert drawn.output_lens == (tokens_out,) * requests
    assert drawn.longest == tokens_in + tokens_out


@pytest.mark.parametrize("vocab_size", [2, 11, 100, 49_152, 200_000])
def test_ids_stay_inside_the_vocabulary(vocab_size: int) -> None:
    ids = [token for prompt in draw(Workload(20, (1, 50), 1), vocab_size).prompts for token in prompt]
    assert 0 <= min(ids) <= max(ids) < vocab_size


def test_a_larger_vocabulary_changes_nothing_past_the_highest_id() -> None:
    assert draw(CASES["dec64"], 100_001) == draw(CASES["dec64"], 151_936)


def test_seeds_differ_and_repeat() -> None:
    one, again, two = (draw(CASES["lat8"], 1000, seed).prompts for seed in (1, 1, 2))
    assert one == again != two


@pytest.mark.parametrize(("text", "length"), [("128", 128), ("100:1024", (100, 1024)), ("5:5", (5, 5))])
def test_lengths(text: str, length: object) -> None:
    assert read_length(text) == length


@pytest.mark.parametrize("text", ["0", "-1", "a", "5:4", "0:4", "1:", ""])
def test_wrong_lengths(text: str) -> None:
    with pytest.raises(ValueError):
        read_length(text)
