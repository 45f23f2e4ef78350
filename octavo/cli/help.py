"""What `--help` prints: the command's own flags, one group, one flag, or all."""

from __future__ import annotations

import textwrap
from typing import get_args

from octavo.config.compat import FOREIGN
from octavo.config.fields import Setting, option, settings_of

COLUMN = 34
WIDTH = 110


def asked_help(argv: list[str]) -> str | None:
    """What help is asked for: None, "" for the short one, or the word after `--help=`."""
    for word in argv:
        if word in ("-h", "--help"):
            return ""
        if word.startswith("--help="):
            return word.removeprefix("--help=").strip()
    return None


def render(command: str, summary: str, usage: str, topics: tuple[type, ...], asked: str) -> str:
    """The help text of a command."""
    by_topic = {settings_of(topic)[0].topic: settings_of(topic) for topic in topics if settings_of(topic)}
    name = asked.lstrip("-").replace("-", "_").lower().removesuffix("config")
    if not asked:
        own = {topic: found for topic, found in by_topic.items() if topic in (command.replace(" ", ""), "sampling")}
        groups = ", ".join(topic for topic in by_topic if topic not in own)
        more = [
            f"More flags by group: --help=<group> with {groups}; --help=<flag>; --help=all." if groups else "Also: --help=<flag>.",
            "--config FILE reads flags from a YAML file; --preset chat, batch or long-context takes one that comes with Octavo.",
        ]
        return "\n".join([f"usage: octavo {usage}", "", summary, "", *_sections(own), *more])
    if asked == "all":
        return "\n".join([f"usage: octavo {usage}", "", *_sections(by_topic), *_foreign_section()])
    if name in by_topic:
        return "\n".join(_sections({name: by_topic[name]}))
    for found in by_topic.values():
        for setting in found:
            if name in (setting.name, *setting.flag.also) or "-" + asked.lstrip("-") in setting.flag.short:
                return _entry(setting)
    name = next((key for key, foreign in FOREIGN.items() if name == key or "-" + asked.lstrip("-") in foreign.short), "")
    if name:
        verb = "is refused" if FOREIGN[name].refused else "is accepted and changes nothing"
        return f"{option(name)} {verb}: {FOREIGN[name].reason}"
    return f"no flag or group is named {asked}; groups: {', '.join(by_topic)}"


def default_text(setting: Setting) -> str:
    """The default as help shows it, empty where there is nothing to say."""
    if setting.default is None or setting.default in ((), {}, ""):
        return ""
    if setting.is_switch:
        return "on" if setting.default else "off"
    return " ".join(map(str, setting.default)) if isinstance(setting.default, tuple) else str(setting.default)


def _sections(by_topic: dict[str, tuple[Setting, ...]]) -> list[str]:
    lines: list[str] = []
    for topic, found in by_topic.items():
        lines += [f"{topic}:", *map(_entry, found), ""]
    return lines


def _entry(setting: Setting) -> str:
    long = option(setting.name)
    names = ", ".join([*setting.flag.short, f"{long}, --no-{long[2:]}" if setting.is_switch else long])
    value = "" if setting.is_switch else " {" + ",".join(map(str, setting.choices)) + "}" if setting.choices else " " + value_name(setting)
    default = default_text(setting)
    text = setting.flag.help + (f" (default: {default})" if default else "")
    head = f"  {names}{value}"
    body = textwrap.wrap(text, WIDTH - COLUMN)
    if len(head) < COLUMN - 1:
        body[0] = head.ljust(COLUMN) + body[0]
        return "\n".join([body[0], *(" " * COLUMN + line for line in body[1:])])
    return "\n".join([head, *(" " * COLUMN + line for line in body)])


def value_name(setting: Setting) -> str:
    """What stands for the value in help: N, X, TEXT, JSON, and `...` after it for lists."""
    if setting.is_list:
        return "TEXT ..." if "str" in str(setting.kind) else "N ..."
    if setting.is_mapping:
        return "JSON"
    names = {int: "N", float: "X", str: "TEXT"}
    if setting.kind in names:
        return names[setting.kind]
    parts = [names.get(part) or "|".join(map(str, get_args(part))) for part in get_args(setting.kind)]
    return "|".join(parts)


def _foreign_section() -> list[str]:
    lines = ["flags of vLLM without effect or refused:"]
    for name, foreign in FOREIGN.items():
        lines += textwrap.wrap(
            f"{option(name)} ({'refused' if foreign.refused else 'no effect'}): {foreign.reason}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="      ",
        )
    return lines
