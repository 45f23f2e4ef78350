from typing import Any

import pytest

from octavo.text.template import ChatTemplate
from octavo.types import InvalidRequest

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRING_ONLY = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}JUNK{% endif %}{% endfor %}"
PARTS_ONLY = "{% for m in messages %}{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% set content = m.content %}{% if content is string %}{{ content }}"
    "{% else %}{% for part in content | selectattr('type', 'equalto', 'text') %}[{{ part['text'] }}]{% endfor %}{% endif %}{% endfor %}"
)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_a_missing_system_role_is_the_templates_to_fill() -> None:
    assert ChatTemplate(CHATML).render(user("Hi")) == (
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (STRING_ONLY, "15C", "15C"),
        (STRING_ONLY, parts("15C", "dry"), "15C\ndry"),
        (STRING_ONLY, ["15C"], "15C"),
        (PARTS_ONLY, "15C", "[15C]"),
        (PARTS_ONLY, parts("15C", "dry"), "[15C][dry]"),
        (BOTH, "15C", "15C"),
        (BOTH, parts("15C", "dry"), "[15C][dry]"),
        (PLAIN, None, "<user>\n<assistant>"),
    ],
)
def test_content_comes_in_the_form_that_the_template_knows(source: str, content: Any, text: str) -> None:
    assert ChatTemplate(source).render(user(content)) == text


@pytest.mark.parametrize("content", ["15C", parts("15C")])
def test_the_form_of_content_can_be_ordered(content: Any) -> None:
    shown = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    assert ChatTemplate(shown, content_format="string").render(user(content)) == '"15C"'
    assert ChatTemplate(shown, content_format="openai").render(user(content)) == '[{"type": "text", "text": "15C"}]'


def test_splitting_a_text_is_not_walking_through_parts() -> None:
    source = "{% for m in messages %}{% for line in m.content.split('|') %}({{ line }}){% endfor %}{% endfor %}"
    assert ChatTemplate(source).render(user(parts("a|b"))) == "(a)(b)"


@pytest.mark.parametrize(
    "content", [3, {"a": 1}, [{"type": "image_url", "image_url": {"url": "x"}}], [7], [{"type": "text"}], [{"type": "text", "text": 3}]]
)
def test_content_of_another_kind_is_refused_by_its_place(content: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(PLAIN).render([*user("fine"), *user(content)])
    assert caught.value.field.startswith("messages[1].content")


@pytest.mark.parametrize("message", ["text", 3, None, {}, {"content": "x"}, {"role": 3, "content": "x"}])
def test_a_message_needs_a_role(message: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(PLAIN).render([message])
    assert caught.value.field == "messages[0]"


def calling(arguments: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}]


@pytest.mark.parametrize(
    ("arguments", "shown"), [('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a": 1}'), ("", "{}"), (None, "{}"), ('{"ü": "<"}', '{"ü": "<"}')]
)
def test_arguments_of_past_calls_are_parsed_before_rendering(arguments: Any, shown: str) -> None:
    template = ChatTemplate("{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}")
    assert template.render(calling(arguments)) == shown


def test_broken_arguments_name_the_message() -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON") as caught:
        ChatTemplate(PLAIN).render([*user("x"), *calling("{a:")])
    assert caught.value.field == "messages[1].tool_calls[0].function.arguments"


def test_a_call_without_content_is_told_from_a_text() -> None:
    template = ChatTemplate("{% for m in messages %}{{ 'call' if m.content is none else 'text' }}{% endfor %}")
    assert template.render([*calling("{}"), {"role": "assistant", "content": None}]) == "calltext"


@pytest.mark.parametrize(
    ("content", "end"), [("Once upon", "Once upon"), ("Once upon ", "Once upon "), (parts("Once", "upon"), "Once\nupon"), ("a a", "a a")]
)
def test_the_final_message_is_left_open(content: Any, end: str) -> None:
    messages = [*user("a"), {"role": "assistant", "content": content}]
    trimming = PLAIN.replace("m.content", "m.content | trim")
    for source in (PLAIN, trimming, CHATML):
        text = ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)
        assert text.endswith(end)
        assert text.isprintable() or text.replace("\n", "").isprintable()


def test_continuing_needs_no_generation_prompt_and_content_that_shows() -> None:
    with pytest.raises(InvalidRequest, match="add_generation_prompt"):
        ChatTemplate(PLAIN).render(user("a"), continue_final_message=True)
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        ChatTemplate("nothing").render(user("a"), add_generation_prompt=False, continue_final_message=True)


def test_what_templates_of_the_hub_use() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}"
        "{{ tools | tojson(indent=None) }}{{ strftime_now('%%') }}{{ thinking }}"
    )
    messages = [{"role": "skip", "content": "no"}, *user("a"), *user("b"), *user("c")]
    text = ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools=[{"n": "<é>"}], variables={"thinking": "off"})
    assert text == '<s>ab[{"n": "<é>"}]%off'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 3 }}",
        "{{ messages[7].content.upper() }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
    ],
)
def test_what_a_template_raises_is_a_bad_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template") as caught:
        ChatTemplate(source).render(user("a"))
    assert caught.value.field == "messages"


def test_a_template_that_is_no_template() -> None:
    with pytest.raises(InvalidRequest, match="no valid Jinja") as caught:
        ChatTemplate("{% for %}")
    assert caught.value.field == "chat_template"


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        ChatTemplate(PLAIN).render([])
