"""The command line of a command, derived from the dataclasses of its settings: command line over file over environment over default.

Conventions: `--max-model-len` is `--max_model_len`; switches have `--x` and `--no-x`; numbers may be written `32k` (32,000) and `32K`
(32,768); a JSON argument may be given whole or key by key (`--hf-overrides.rope_theta 5e5`, a `+` after the key appends to a list).
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from octavo.config.compat import FOREIGN
from octavo.config.engine import COMPOUND, COMPOUND_SHORT, ENGINE_TOPICS, EngineConfig, accept, build, canonical, names_of
from octavo.config.fields import ConfigError, Setting, UnknownSetting, option, parse_value, settings_of, shown

COMMAND_LINE = "command line"
PRESETS = Path(__file__).parents[1] / "config" / "presets"


@dataclass(frozen=True)
class Settings:
    """What a command was asked, by flat name, and where each value comes from. Names left at their default are absent."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    topics: tuple[type, ...]

    def topic(self, kind: type) -> Any:
        """One dataclass of settings. Raises `ConfigError`."""
        return build(kind, self.values)

    def engine_flags(self) -> dict[str, Any]:
        """The arguments for `LLM(...)`."""
        names = names_of(ENGINE_TOPICS)
        return {name: value for name, value in self.values.items() if name in names}

    def engine(self) -> EngineConfig:
        return EngineConfig.from_flags(**self.engine_flags())

    def describe(self) -> str:
        """One line a setting that is not at its default: name, value and source."""
        known = names_of(self.topics)
        lines = [
            f"  {name} = {'***' if known[name].flag.secret else shown(value)} ({self.sources[name]})" for name, value in self.values.items()
        ]
        return "\n".join(lines) or "  all at their defaults"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandLineError(message)


class CommandLineError(ValueError):
    """The command line cannot be read."""


def parse(argv: Sequence[str], topics: tuple[type, ...], positional: str | None = "model") -> Settings:
    """Read a command's arguments. `positional` names the setting that may be given without a flag.

    Raises `CommandLineError`, `ConfigError`, `UnknownSetting` and `octavo.env.BadEnvironment`.
    """
    argv, files = _take_values([_dashed(word) for word in argv], "--config", "a file")
    argv, presets = _take_values(argv, "--preset", f"one of {', '.join(preset_names())}")
    argv, dotted = _take_dotted(argv)
    layers = [(COMMAND_LINE, _read_command_line(argv, dotted, topics, positional))]
    layers += [(path, _read_file(path)) for path in reversed(files)]
    layers.append(("", _read_environment(topics)))
    layers += [(f"preset {name}", _read_preset(name)) for name in reversed(presets)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, flat in layers:
        for name, value in canonical(flat, topics).items():
            if name not in values:
                values[name], sources[name] = value, source or str(_variable_name(name, topics))
    accepted = accept(values, topics)
    known = names_of(topics)
    return Settings({name: known[name].parse(value) for name, value in accepted.items()}, sources, topics)


def _dashed(word: str) -> str:
    """--max_model_len=5 -> --max-model-len=5; keys after a dot and values stay as they are."""
    if not word.startswith("--"):
        return word
    end = min((index for index in (word.find("="), word.find(".")) if index > 0), default=len(word))
    return word[:end].replace("_", "-") + word[end:]


def _take_values(argv: list[str], flag: str, needed: str) -> tuple[list[str], list[str]]:
    """Remove `FLAG VALUE` and `FLAG=VALUE`, wherever they stand."""
    rest: list[str] = []
    found: list[str] = []
    words = iter(argv)
    for word in words:
        if word == flag:
            value = next(words, None)
            if value is None:
                raise CommandLineError(f"{flag} needs {needed}")
            found.append(value)
        elif word.startswith(f"{flag}="):
            found.append(word.removeprefix(f"{flag}="))
        else:
            rest.append(word)
    return rest, found


def preset_names() -> list[str]:
    """The settings files that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _read_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise CommandLineError(f"--preset {name} is not known; use {', '.join(preset_names())}")
    return _read_file(str(PRESETS / f"{name}.yaml"))


def _take_dotted(argv: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Remove `--name.key value` and collect them as {name: {key: value}}."""
    shorts = {short: option(name) for name, short in (*COMPOUND_SHORT.items(), ("compilation_config", "-O"), ("speculative_config", "-sc"))}
    rest: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        head, dot, keys = word.partition("=")[0].partition(".")
        head = shorts.get(head, head)
        if not dot or not head.startswith("--"):
            rest.append(word)
            continue
        value = word.partition("=")[2] if "=" in word else next(words, None)
        if value is None:
            raise CommandLineError(f"{word} needs a value")
        _put(found.setdefault(head[2:].replace("-", "_"), {}), keys.split("."), _json_or_text(value))
    return rest, found


def _put(target: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    if keys[-1].endswith("+"):
        target.setdefault(keys[-1][:-1], []).append(value)
    else:
        target[keys[-1]] = value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_command_line(
    argv: list[str], dotted: dict[str, dict[str, Any]], topics: tuple[type, ...], positional: str | None
) -> dict[str, Any]:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    if positional:
        parser.add_argument("_positional", nargs="?")
    for topic in topics:
        for setting in settings_of(topic):
            _add_setting(parser, setting)
    for name, foreign in FOREIGN.items():
        if name not in names_of(topics):
            _add(parser, (*foreign.short, option(name)), name, foreign.takes == "switch", foreign.takes == "list")
    for name in COMPOUND:
        _add(parser, (COMPOUND_SHORT[name], option(name)), name, False, False)
    known, unknown = parser.parse_known_args([_plain_switch(word, parser) for word in argv])
    if unknown:
        _refuse_unknown(unknown, parser)
    values = vars(known)
    if str(values.get("_positional")).lower() in ("true", "false"):
        raise CommandLineError(f"{values['_positional']} belongs to no flag; write --x, --no-x or --x=false, as in --no-enforce-eager")
    if positional and "_positional" in values:
        values[positional] = values.pop("_positional")
    for name, keys in dotted.items():
        whole = values.get(name, "{}")
        values[name] = {**(_json_or_text(whole) if isinstance(whole, str) else whole), **keys}
    return values


def _add_setting(parser: argparse.ArgumentParser, setting: Setting) -> None:
    names = (*setting.flag.short, option(setting.name), *map(option, setting.flag.also))
    _add(parser, names, setting.name, setting.is_switch, setting.is_list)


def _add(parser: argparse.ArgumentParser, names: tuple[str, ...], name: str, is_switch: bool, is_list: bool) -> None:
    if is_switch:
        parser.add_argument(*names, dest=name, action="store_const", const=True)
        negative = ["--no-" + long[2:] for long in names if long.startswith("--")]
        parser.add_argument(*negative, dest=name, action="store_const", const=False)
    elif is_list:
        parser.add_argument(*names, dest=name, nargs="+", action="extend")
    else:
        parser.add_argument(*names, dest=name)


def _plain_switch(word: str, parser: argparse.ArgumentParser) -> str:
    """--enforce-eager=false -> --no-enforce-eager; every other word stays as it is. Raises `ConfigError`."""
    name, equals, value = word.partition("=")
    action = parser._option_string_actions.get(name)  # pyright: ignore[reportPrivateUsage]
    if not equals or action is None or action.nargs != 0:
        return word
    wanted = parse_value(action.dest, bool, value) is bool(action.const)
    return option(action.dest) if wanted else "--no-" + option(action.dest)[2:]


def _refuse_unknown(unknown: list[str], parser: argparse.ArgumentParser) -> NoReturn:
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if not flags:
        raise CommandLineError(f"too many words: {' '.join(unknown)}")
    close = difflib.get_close_matches(flags[0], list(parser._option_string_actions), n=3)  # pyright: ignore[reportPrivateUsage]
    hint = f"did you mean {' or '.join(close)}?" if close else "--help=all lists the flags"
    raise CommandLineError(f"{flags[0]} is not a flag of this command; {hint}")


def _read_file(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandLineError(f"--config {path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise CommandLineError(f"--config {path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CommandLineError(f"--config {path} must hold one `name: value` a line")
    return {str(name): value for name, value in content.items()}


def _read_environment(topics: tuple[type, ...]) -> dict[str, Any]:
    variables = {setting.name: setting.flag.env for topic in topics for setting in settings_of(topic) if setting.flag.env}
    return {name: variable.get() for name, variable in variables.items() if variable.given_as()}


def _variable_name(name: str, topics: tuple[type, ...]) -> str | None:
    variable = names_of(topics)[name].flag.env
    return variable.given_as() if variable else None


__all__ = ["COMMAND_LINE", "CommandLineError", "ConfigError", "Settings", "UnknownSetting", "parse"]
