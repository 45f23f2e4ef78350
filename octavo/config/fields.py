"""What a setting is: a field of a frozen dataclass, `Annotated[type, Flag(help)]`. From it come the command-line flag, the key in a YAML
file, the argument of `LLM(...)`, the check of its type and its line in the flag reference."""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from octavo.env import Variable


class ConfigError(ValueError):
    """A setting that cannot work. Names the flag, the value and what works instead."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{option(name)} = {shown(value)} is not possible: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed


class UnknownSetting(TypeError):
    """A name that is no setting; names the ones that look like it."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `octavo serve --help=all` lists them"
        super().__init__(f"{name} is not a setting of Octavo{hint}")
        self.name = name
        self.close = close


@dataclass(frozen=True)
class Flag:
    """How a field shows on the command line."""

    help: str  # with its unit
    short: tuple[str, ...] = ()  # such as "-tp"
    also: tuple[str, ...] = ()  # further names of the field
    env: Variable[Any] | None = None  # gives the default where it is set
    secret: bool = False  # never printed


@dataclass(frozen=True)
class Setting:
    """One field of a topic, as read from its annotation."""

    name: str
    topic: str
    type: Any
    default: object
    flag: Flag

    @property
    def optional(self) -> bool:
        """Whether None, "decide for me" or "none", is a value."""
        return type(None) in get_args(self.type)

    @property
    def kind(self) -> Any:
        """The type without None."""
        rest = [part for part in get_args(self.type) if part is not type(None)] if _is_union(self.type) else [self.type]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.kind) is dict

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def parse(self, value: object) -> Any:
        """A value of the field's type from a text, a YAML value or a Python value. Raises `ConfigError`."""
        if self.optional and (value is None or value in ("None", "none", "")):
            return None
        return parse_value(self.name, self.kind, value)


def option(name: str) -> str:
    """The flag of a field: max_num_seqs -> --max-num-seqs. An environment variable is its own name."""
    return name if name.isupper() else "--" + name.replace("_", "-")


def shown(value: object) -> str:
    """A value as an error quotes it, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@cache
def settings_of(topic: type) -> tuple[Setting, ...]:
    """The settings that a topic's dataclass declares, in order."""
    hints = get_type_hints(topic, include_extras=True)
    found: list[Setting] = []
    for field in fields(topic):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        kind, flag = get_args(hint)[:2]
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        found.append(Setting(field.name, topic.__name__.removesuffix("Config").removesuffix("Options").lower(), kind, default, flag))
    return tuple(found)


def human_int(text: str) -> int:
    """`4096`, `32k` (32,000), `32K` (32,768), `1.5k`: lower-case suffixes count by 1000, upper-case ones by 1024. Raises ValueError."""
    text = text.strip().replace("_", "")
    suffix = text[-1:] if text[-1:] in "kKmMgGtT" else ""
    if not suffix:
        return int(text)
    number, power = text[:-1], "kmgt".index(suffix.lower()) + 1
    if suffix.islower():
        exact = float(number) * 1000**power
        if exact != round(exact) or not math.isfinite(exact):
            raise ValueError("not a whole number")
        return round(exact)
    return int(number) * 1024**power  # a fraction of 1024 is refused, as a typing error would pass otherwise


def _listed(item: Any) -> list[Any]:
    """What a text such as '["a", "b"]' holds; anything else is one item."""
    if isinstance(item, str) and item.startswith("["):
        with suppress(ValueError):
            return json.loads(item)
    return [item]


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def parse_value(name: str, kind: Any, value: Any) -> Any:
    """A value of type `kind` from a text, a YAML value or a Python value; `name` is for the error. Raises `ConfigError`."""
    origin = get_origin(kind)
    if _is_union(kind):
        return _parse_union(name, kind, value)
    if origin is Literal:
        return _parse_choice(name, get_args(kind), value)
    if origin is tuple:
        items = cast("list[Any]", list(value) if isinstance(value, (list, tuple)) else [value])  # pyright: ignore[reportUnknownArgumentType]
        return tuple(parse_value(name, get_args(kind)[0], inner) for item in items for inner in _listed(item))
    if origin is dict:
        return _parse_mapping(name, value)
    return {bool: _parse_bool, int: _parse_int, float: _parse_float, str: _parse_text}[kind](name, value)


def _parse_union(name: str, kind: Any, value: Any) -> Any:
    errors: list[ConfigError] = []
    for part in sorted(get_args(kind), key=lambda part: get_origin(part) is not Literal):  # names first, then free values
        try:
            return parse_value(name, part, value)
        except ConfigError as error:
            errors.append(error)
    raise ConfigError(name, value, " or ".join(error.allowed for error in errors))


def _parse_choice(name: str, choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if value == choice or (isinstance(value, str) and isinstance(choice, str) and value.lower() == choice.lower()):
            return choice
    close = difflib.get_close_matches(str(value).lower(), [str(choice) for choice in choices], n=1)
    nearest = f" (nearest: {close[0]})" if close else ""
    raise ConfigError(name, value, f"use one of {', '.join(str(choice) for choice in choices)}{nearest}")


def _parse_mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(name, value, f"a JSON object is needed ({error})") from None
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, 'a JSON object such as {"key": 1} is needed')
    return {str(key): entry for key, entry in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _parse_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if str(value).lower() in known:
        return known[str(value).lower()]
    raise ConfigError(name, value, "use true or false")


def _parse_int(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return human_int(value)
        except (ValueError, OverflowError):
            pass
    raise ConfigError(name, value, "a whole number is needed, such as 4096, 32k (32,000) or 32K (32,768)")


def _parse_float(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(name, value, "a finite number is needed")
    return number


def _parse_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # YAML reads an unquoted 1234 as a number
    raise ConfigError(name, value, "a text is needed")


def at_least(name: str, value: float | None, low: float) -> None:
    """Refuse a number under `low`; None passes."""
    if value is not None and value < low:
        raise ConfigError(name, value, f"it must be at least {low}")
