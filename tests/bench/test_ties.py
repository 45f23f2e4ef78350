"""What counts as a tie, and that a text is compared to its end whatever differs on the way."""

from types import SimpleNamespace

from octavo.bench.ties import Told, differences, tell

REFERENCE = [4, 8, 15, 16, 23, 42]


class Says:
    """Goes on with a text, but says something else at some places."""

    def __init__(self, other: dict[int, int]) -> None:
        self.other, self.asked = other, []

    def generate(self, prompts, sampling_params, use_tqdm):
        prompt = prompts[0]["prompt_token_ids"]
        begin = len(prompt) - 2
        self.asked.append(prompt[2:])
        tokens = [self.other.get(place, REFERENCE[place]) for place in range(begin, len(REFERENCE))][: sampling_params.max_tokens]
        logprobs = [{token: SimpleNamespace(logprob=-1.0), 99: SimpleNamespace(logprob=-1.1)} for token in tokens]
        output = SimpleNamespace(token_ids=tokens, logprobs=logprobs if sampling_params.logprobs else None)
        return [SimpleNamespace(outputs=[output])]


def told() -> Told:
    return Told([1, 2], REFERENCE, [[(token, -1.0), (7, -1.1), (9, -3.0), (10, -5.0)] for token in REFERENCE])


def test_the_same_text_differs_nowhere():
    llm = Says({})
    assert differences(llm, told()) == []
    assert llm.asked == [[]]


def test_after_a_difference_it_goes_on_with_the_reference():
    llm = Says({1: 7, 3: 10, 5: 1000})
    found = differences(llm, told())
    assert [(one.place, one.token, one.tie) for one in found] == [(1, 7, True), (3, 10, False), (5, 1000, False)]
    assert abs(found[0].behind - 0.1) < 1e-9
    assert found[2].behind == float("inf")
    assert llm.asked == [[], REFERENCE[:2], REFERENCE[:4]]


def test_what_is_told():
    assert tell(Says({}), [1, 2], 4) == Told([1, 2], REFERENCE[:4], [[(token, -1.0), (99, -1.1)] for token in REFERENCE[:4]])
