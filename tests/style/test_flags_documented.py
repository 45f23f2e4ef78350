"""Every flag has one name, a help text, and one declaration."""

from __future__ import annotations

from octavo.cli.main import COMMANDS
from octavo.config.compat import FOREIGN
from octavo.config.fields import Setting, settings_of


def all_settings() -> list[tuple[str, Setting]]:
    found: list[tuple[str, Setting]] = []
    for name, command in COMMANDS.items():
        module = command.module(name)
        found += [(name, setting) for topic in (module.OPTIONS, *module.TOPICS) for setting in settings_of(topic)]
    return found


def test_a_command_has_no_flag_twice() -> None:
    for command in COMMANDS:
        names = [name for owner, setting in all_settings() if owner == command for name in (setting.name, *setting.flag.also)]
        assert len(names) == len(set(names))
        shorts = [short for owner, setting in all_settings() if owner == command for short in setting.flag.short]
        assert len(shorts) == len(set(shorts))


def test_every_flag_has_a_help_text_that_says_something() -> None:
    for _, setting in all_settings():
        text = setting.flag.help
        assert len(text) > 12, setting.name
        assert not text.endswith("."), setting.name
        assert setting.name.replace("_", " ") != text.lower(), setting.name


def test_numbers_say_their_unit_or_what_they_count() -> None:
    things = "tokens bytes seconds share GiB sequences prompts requests blocks devices replicas port runs random number groups many"
    words = (*things.split(), "0", "1", "divide", "lower", "higher", "most", "largest")
    for _, setting in all_settings():
        if setting.kind in (int, float):
            assert any(word in setting.flag.help for word in words), f"{setting.name}: {setting.flag.help}"


def test_reasons_are_given_and_refusals_name_what_to_do_instead() -> None:
    for name, foreign in FOREIGN.items():
        assert len(foreign.reason) > 12, name
        if foreign.refused:
            assert any(mark in foreign.reason for mark in (";", "use ", "name ", "set ")), f"{name}: {foreign.reason}"
