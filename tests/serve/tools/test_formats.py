"""The law of the formats: however a text is split, the parts told join to those of the whole text; and what each format says of a text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config.fields import settings_of
from octavo.config.server import ServerConfig
from octavo.serve.answer_format import Answered
from octavo.serve.parts import AnswerReader, CallArguments, CallBegin, Content, Part, Reasoning, joined
from octavo.serve.reasoning.format import REASONING_FORMATS
from octavo.serve.tools.forced import ListedCalls, NamedCall
from octavo.serve.tools.format import TOOL_FORMATS

KNOWN = frozenset({"f", "g", "now", "add"})
DEEPSEEK = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"  # noqa: RUF001
DEEPSEEK_CALL = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"  # noqa: RUF001
DEEPSEEK_31_CALL = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"  # noqa: RUF001
F = '{"city": "Spring\\"field}", "opt": {"u": ["F", null]}}'
G = '{"a": "<tool_call>[TOOL_CALLS]</tool_call> é🙂"}'


def reader_of(name: str, max_calls: int | None = None) -> AnswerReader:
    form = {"named": NamedCall("f"), "listed": ListedCalls()}.get(name) or TOOL_FORMATS.load(name)()
    return AnswerReader([lambda reader: form.read(reader, KNOWN)], max_calls)


def read(name: str, pieces: list[str], max_calls: int | None = None) -> list[Part]:
    reader = reader_of(name, max_calls)
    told = [part for piece in pieces for part in reader.push(piece)]
    return joined(told + reader.push("", last=True))


def answered(name: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    whole = Answered.of(read(name, [text]))
    return whole.content, whole.calls


def written(name: str, calls: list[tuple[str, str]]) -> str:
    """Calls as the models of this format write them."""
    objects = [f'{{"name": "{one}", "arguments": {arguments}}}' for one, arguments in calls]
    match name:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case "mistral v11":
            return "".join(f"[TOOL_CALLS]{one}[ARGS]{arguments}" for one, arguments in calls)
        case "llama3_json":
            return "<|python_tag|>" + "; ".join(one.replace('"arguments"', '"parameters"') for one in objects)
        case "deepseek_v3":
            return DEEPSEEK.format("\n".join(DEEPSEEK_CALL.format(*call) for call in calls))
        case "deepseek_v31":
            return DEEPSEEK.format("".join(DEEPSEEK_31_CALL.format(*call) for call in calls))
        case "pythonic":
            texts = (f"{one}({', '.join(f'{key}={value!r}' for key, value in json.loads(arguments).items())})" for one, arguments in calls)
            return f"[{', '.join(texts)}]"
        case _:
            return f"[{', '.join(objects)}]"


FORMS = ("hermes", "mistral", "mistral v11", "llama3_json", "deepseek_v3", "deepseek_v31", "pythonic", "listed")


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_found_whole_for_every_cut(form: str) -> None:
    """Nested objects, a marker inside a string, a call without arguments before one with some."""
    name, calls = form.split()[0], [("now", "{}"), ("f", F), ("g", G)]
    text = written(form, calls)
    whole = read(name, [text])
    found = Answered.of(whole)
    assert found.content == ""
    assert [(one, json.loads(arguments)) for one, arguments in found.calls] == [(one, json.loads(a)) for one, a in calls]
    if form != "pythonic":  # which has to put them into JSON itself
        assert found.calls == calls
    for cut in range(len(text)):
        assert read(name, [text[:cut], text[cut:]]) == whole
    assert read(name, list(text)) == whole


FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", "_call>", '{"name":', '"f"', ',"arguments":', F, "{", "}", " ", "\n", "x", '"'],
    "mistral": ["[TOOL_CALLS]", "[TOOL", "[ARGS]", "f", "[", "]", '{"name":', '"f"', ',"arguments":', F, "}", ",", " ", "x", "[CALL_ID]c1"],
    "llama3_json": ["<|python_tag|>", "<|py", '{"name":', '"f"', '"nobody"', ',"parameters":', F, "}", ";", " ", "x", '"', "{"],
    "deepseek_v3": [*DEEPSEEK.split("{}"), *DEEPSEEK_CALL.split("{}"), DEEPSEEK_31_CALL.format("g", "{}"), "f", F, " ", "x"],
    "pythonic": ["[", "]", "f(", ")", "a=1", ",", "b='x)'", '"', "'", "\\", " ", "nobody()", "now()", "x", "<|python_start|>"],
    "named": [F, "{", "}", " ", "x", '"', "[", "\\"],
    "listed": ["[", "]", '{"name":', '"f"', ',"parameters":', F, "}", ",", " ", "x"],
}


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FRAGMENTS)), max_calls=st.sampled_from([None, 1]))
def test_hostile_texts_give_the_same_for_every_split_and_lose_nothing(data: st.DataObject, name: str, max_calls: int | None) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS[name]), max_size=14)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]
    whole = read(name, [text], max_calls)
    assert read(name, pieces, max_calls) == whole
    calls = [part.call for part in whole if isinstance(part, CallBegin)]
    assert calls == list(range(len(calls)))
    assert max_calls is None or len(calls) <= max_calls
    if not reader_calls(name, text):
        assert Answered.of(whole).content == text, "without a call all of it is content"


def reader_calls(name: str, text: str) -> int:
    reader = reader_of(name)
    reader.push(text, last=True)
    return reader.num_calls


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("hermes", 'Let me see. <tool_call>{"name": "now"}</tool_call> Done.', "Let me see. Done.", [("now", "{}")]),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', "", [("add", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("add", '{"a": 1}')]),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "{}")]),
        ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "", [("nobody", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, ', "", [("f", '{"a": [1, ')]),
        ("hermes", 'Hm <tool_call>{"name": "f', 'Hm <tool_call>{"name": "f', []),
        ("hermes", "I write <tool_call> like this </tool_call>.", "I write <tool_call> like this </tool_call>.", []),
        ("hermes", '<tool_call>{"name": 7}</tool_call> a', '<tool_call>{"name": 7}</tool_call> a', []),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        ("mistral", "[TOOL_CALLS] are markers", "[TOOL_CALLS] are markers", []),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ("llama3_json", '{"name": "Alice", "parameters": 3}', '{"name": "Alice", "parameters": 3}', []),
        ("llama3_json", 'Say {"name": "f", "parameters": {}}', 'Say {"name": "f", "parameters": {}}', []),
        ("pythonic", "<|python_start|>[f(a=-1, b=True, c=null)]<|python_end|>", "", [("f", '{"a": -1, "b": true, "c": null}')]),
        ("pythonic", "[f(a=open('x'))]", "[f(a=open('x'))]", []),
        ("pythonic", "[f(1)]", "[f(1)]", []),
        ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
        ("pythonic", "[f(a=1), f(a=", ", f(a=", [("f", '{"a": 1}')]),
        ("named", ' {"a": 1} ', "", [("f", '{"a": 1}')]),
        ("listed", '[{"name": "f", "parameters": {"a": 1}}, {"name": "now", "parameters": {}}]', "", [("f", '{"a": 1}'), ("now", "{}")]),
    ],
)
def test_what_a_text_says(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert answered(name, text) == (content, calls)


def test_arguments_are_told_as_they_come() -> None:
    reader = reader_of("hermes")
    assert reader.push('<tool_call>{"name": "f", "argu') == [CallBegin(0, "f")]
    assert reader.push('ments": {"a":') == [CallArguments(0, '{"a":')]
    assert reader.push(" 1}}</tool") == [CallArguments(0, " 1}")]
    assert reader.push("_call>", last=True) == []


def test_content_waits_only_for_what_could_become_a_marker() -> None:
    reader = reader_of("hermes")
    assert reader.push("a < b <") == [Content("a < b")]
    assert reader.push("tool") == []
    assert reader.push("s>") == [Content(" <tools>")]


def test_one_call_only_where_no_more_are_wanted() -> None:
    text = written("hermes", [("f", F), ("g", G)])
    whole = Answered.of(read("hermes", [text], max_calls=1))
    assert whole.calls == [("f", F)]
    assert whole.content == ""


TAGS = {
    ("deepseek_r1", False): [("I think</think>\n\nYes", "I think", "Yes"), ("<think>\nA\n</think>B", "A", "B"), ("no end", "no end", "")],
    ("qwen3", False): [("<think>\nA\n</think>\n\nB ", "A", "B "), ("Just this", "", "Just this"), ("  <thin", "", "  <thin")],
    ("qwen3", True): [("A</think> B", "A", "B"), ("a </thi> b</think>c", "a </thi> b", "c")],
    ("mistral", False): [("[THINK]A[/THINK]B", "A", "B")],
}


@pytest.mark.parametrize(("name", "opened"), TAGS)
def test_reasoning_is_told_apart_for_every_split(name: str, opened: bool) -> None:
    tags = REASONING_FORMATS[name]
    for text, reasoning, content in TAGS[name, opened]:
        for size in range(1, len(text) + 1):
            reader = AnswerReader([lambda r: tags.read(r, opened or tags.implied)])
            parts = [part for at in range(0, len(text), size) for part in reader.push(text[at : at + size])]
            whole = Answered.of([*parts, *reader.push("", last=True)])
            assert (whole.reasoning, whole.content) == (reasoning, content)


def test_the_prompt_says_whether_reasoning_has_begun() -> None:
    qwen, deepseek = REASONING_FORMATS["qwen3"], REASONING_FORMATS["deepseek_r1"]
    assert qwen.opened_by("<|im_start|>assistant\n<think>\n")
    assert not qwen.opened_by("<|im_start|>assistant\n")
    assert not qwen.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert deepseek.opened_by("<|Assistant|>")
    assert not deepseek.opened_by("<|Assistant|></think>")


def test_calls_come_after_reasoning() -> None:
    tags, form = REASONING_FORMATS["qwen3"], TOOL_FORMATS.load("hermes")()
    reader = AnswerReader([lambda r: tags.read(r, False), lambda r: form.read(r, KNOWN)])
    text = "<think>Use <tool_call>?</think>\n" + written("hermes", [("f", F)])
    assert reader.push(text, last=True) == [Reasoning("Use <tool_call>?"), CallBegin(0, "f"), CallArguments(0, F)]


def test_the_flags_name_the_formats_that_there_are() -> None:
    kinds = {setting.name: setting.choices for setting in settings_of(ServerConfig)}
    assert list(kinds["tool_call_parser"]) == TOOL_FORMATS.names()
    assert list(kinds["reasoning_parser"]) == list(REASONING_FORMATS)
    for name in TOOL_FORMATS.names():
        assert TOOL_FORMATS.load(name)().markers
