"""All that a user may ask of an engine: the topics together, and the flat names under which they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Self

from octavo.config.cache import CacheConfig
from octavo.config.compat import FOREIGN
from octavo.config.compilation import CompilationConfig
from octavo.config.fields import ConfigError, Setting, UnknownSetting, option, parse_value, settings_of
from octavo.config.model import ModelConfig
from octavo.config.parallel import ParallelConfig
from octavo.config.scheduler import SchedulerConfig
from octavo.config.server import ServerConfig

log = logging.getLogger("octavo.config")


@dataclass(frozen=True)
class EngineConfig:
    """What is asked of an engine; None and "auto" are left for `resolve` to decide."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compilation: CompilationConfig = field(default_factory=CompilationConfig)

    @classmethod
    def from_flags(cls, **flat: Any) -> Self:
        """From flat names, as `LLM(...)`, a YAML file and the command line give them: `from_flags(model="m", max_num_seqs=64)`.

        Raises `UnknownSetting` (a TypeError) for names that nobody knows and `ConfigError` for values that cannot work.
        """
        flat = accept(flat, (*ENGINE_TOPICS, ServerConfig))
        for setting in settings_of(ServerConfig):
            if setting.name in flat:
                log.warning("%s concerns the server only; it has no effect here", option(setting.name))
        return cls(**{name: build(topic, flat) for name, topic in zip((f.name for f in fields(cls)), ENGINE_TOPICS, strict=True)})


ENGINE_TOPICS: tuple[type, ...] = (ModelConfig, CacheConfig, SchedulerConfig, ParallelConfig, CompilationConfig)


def build(topic: type, flat: Mapping[str, Any]) -> Any:
    """One topic's dataclass from the names in `flat` that belong to it."""
    return topic(**{setting.name: setting.parse(flat[setting.name]) for setting in settings_of(topic) if setting.name in flat})


def accept(flat: Mapping[str, Any], topics: Iterable[type]) -> dict[str, Any]:
    """The values of these topics' settings, under their first names; foreign flags are noted or refused and left out.

    Raises `UnknownSetting` and `ConfigError`.
    """
    known = names_of(tuple(topics))
    named = canonical(flat, tuple(topics))
    for name, value in named.items():
        if name not in known:
            _note_or_refuse(name, value)
    return {name: value for name, value in named.items() if name in known}


def canonical(flat: Mapping[str, Any], topics: tuple[type, ...]) -> dict[str, Any]:
    """The same values under first names, with compound values such as compilation_config={"cudagraph_mode": "FULL"} spread.

    Raises `UnknownSetting` for a name that is neither a setting of the topics nor a foreign flag, `ConfigError` for one given twice.
    """
    known = names_of(topics)
    found: dict[str, Any] = {}
    for given, value in flat.items():
        name = given.replace("-", "_")
        entries = _spread(name, value) if name in COMPOUND else {name: value}
        for entry, content in entries.items():
            if entry not in known and entry not in FOREIGN:
                raise UnknownSetting(given, (*known, *FOREIGN, *COMPOUND))
            first = known[entry].name if entry in known else entry
            if first in found:
                raise ConfigError(first, content, f"it is given twice, also as {option(name)}; give it once")
            found[first] = content
    return found


@cache
def names_of(topics: tuple[type, ...]) -> dict[str, Setting]:
    """Every name, first and second, of the settings of these topics."""
    found: dict[str, Setting] = {}
    for setting in (setting for topic in topics for setting in settings_of(topic)):
        for name in (setting.name, *setting.flag.also):
            if name in found:
                raise ValueError(f"{option(name)} is declared in {found[name].topic} and in {setting.topic}")
            found[name] = setting
    return found


def _note_or_refuse(name: str, value: object) -> None:
    foreign = FOREIGN[name]
    if foreign.harmless_value(value):
        return
    if foreign.refused:
        raise ConfigError(name, value, foreign.reason)
    log.warning("%s is accepted and changes nothing: %s", option(name), foreign.reason)


COMPOUND = {
    "compilation_config": {
        "level": "optimization_level",
        "cudagraph_mode": "cudagraph_mode",
        "cudagraph_capture_sizes": "cudagraph_capture_sizes",
        "max_cudagraph_capture_size": "max_cudagraph_capture_size",
    },
    "attention_config": {"backend": "attention_backend"},
}
COMPOUND_SHORT = {"compilation_config": "-cc", "attention_config": "-ac"}


def _spread(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if name == "compilation_config" and str(value).isdigit():
        value = {"level": value}
    spread: dict[str, Any] = {}
    for key, entry in parse_value(name, dict[str, Any], value).items():
        if key in COMPOUND[name]:
            spread[COMPOUND[name][key]] = entry
        else:
            log.warning("%s.%s is accepted and changes nothing: Octavo compiles in its own way", option(name), key)
    return spread
