import pytest

from octavo.text.intake import Intake
from octavo.types import InvalidRequest, SamplingParams


class Letters:
    """A tokeniser of single characters; 0 begins a text."""

    eos_token_ids = (1,)
    special_ids = frozenset({0, 1})

    def encode(self, text, add_special_tokens=True):
        return [0] * add_special_tokens + [ord(character) for character in text]


INTAKE = Intake(
    Letters(), max_model_len=20, vocab_size=200, eos_token_ids=(1,), generation_config={"temperature": 0.3, "max_new_tokens": 8}
)


def test_a_text_becomes_a_complete_request():
    request = INTAKE.request("r", "ab", SamplingParams(max_tokens=None, bad_words=["x"]), priority=3, cache_salt="s")
    assert request.prompt_token_ids == (0, 97, 98)
    assert request.params.max_tokens == 8
    assert request.params.eos_token_ids == (1,)
    assert request.params.bad_token_ids == ((120,), (32, 120))
    assert (request.priority, request.cache_salt) == (3, "s")


def test_the_models_defaults_yield_to_what_is_given():
    assert INTAKE.default_params().temperature == 0.3
    assert INTAKE.default_params(temperature=0.9).temperature == 0.9


@pytest.mark.parametrize("prompt", [[-1], [5, -1], [True], [1.5], [200], ["a"], []])
def test_bad_token_prompts_are_refused(prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        INTAKE.request("r", prompt, SamplingParams())


def test_a_prompt_that_leaves_no_room_is_refused_and_one_token_less_is_not():
    with pytest.raises(InvalidRequest, match="maximum context length is 20"):
        INTAKE.request("r", [5] * 20, SamplingParams(max_tokens=1))
    assert INTAKE.request("r", [5] * 19, SamplingParams(max_tokens=1)).params.max_tokens == 1


def test_room_for_max_tokens_is_demanded_only_on_request():
    params = SamplingParams(max_tokens=15, min_tokens=12)
    completed = INTAKE.request("r", [5] * 10, params).params
    assert (completed.max_tokens, completed.min_tokens) == (8, 8)
    with pytest.raises(InvalidRequest, match="at most 10 can follow"):
        INTAKE.request("r", [5] * 10, params, must_have_room=True)


def test_truncation_keeps_the_end():
    tokens = list(range(2, 52))
    assert INTAKE.request("r", tokens, SamplingParams(truncate_prompt_tokens=4)).prompt_token_ids == (48, 49, 50, 51)
    assert len(INTAKE.request("r", tokens, SamplingParams(truncate_prompt_tokens=-1)).prompt_token_ids) == 19
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
        INTAKE.request("r", tokens, SamplingParams(truncate_prompt_tokens=21))


def test_without_a_tokeniser_only_ids_are_taken():
    bare = Intake(None, max_model_len=20, vocab_size=200)
    assert bare.request("r", [7], SamplingParams()).prompt_token_ids == (7,)
    for prompt, params in (("text", SamplingParams()), ([7], SamplingParams(bad_words=["x"]))):
        with pytest.raises(InvalidRequest, match="without a tokeniser"):
            bare.request("r", prompt, params)
