"""A setting that nobody reads would promise what does not happen."""

from __future__ import annotations

import ast
import dataclasses
import re

from octavo import env
from octavo.cli.main import COMMANDS
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import settings_of
from octavo.config.resolved import Resolved
from octavo.config.server import ServerConfig
from tests.style.source import sources

# Decided and printed; what they can change needs several devices, or graphs of parts of a step.
NOT_YET_NEEDED = {"data_parallel_size", "graph_mode"}


def read_outside(files: tuple[str, ...]) -> set[str]:
    """Names of attributes that other files read, and texts, by which a loop may name them."""
    nodes = [node for source in sources() if source.name not in files for node in ast.walk(source.tree)]
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    return names | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_setting_is_read_where_it_is_not_declared() -> None:
    declared = tuple(
        f"config/{name}.py" for name in ("model", "cache", "scheduler", "parallel", "compilation", "server", "compat", "resolved")
    )
    read = read_outside(declared)
    names = {setting.name for topic in (*ENGINE_TOPICS, ServerConfig) for setting in settings_of(topic)}
    assert names - read == set()


def test_every_decision_is_read_where_it_is_not_made() -> None:
    read = read_outside(("config/resolved.py", "config/resolve.py"))
    assert {field.name for field in dataclasses.fields(Resolved)} - read - NOT_YET_NEEDED == set()


def test_every_option_of_a_command_is_read_in_its_file() -> None:
    for command in COMMANDS:
        module = COMMANDS[command].module(command)
        source = next(source for source in sources() if source.module == module.__name__)
        used = {node.attr for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
        assert {setting.name for setting in settings_of(module.OPTIONS)} <= used | {""}, command


def test_every_variable_of_the_environment_is_read() -> None:
    text = "\n".join(source.text for source in sources())
    for name in (name for name, value in vars(env).items() if isinstance(value, env.Variable)):
        assert len(re.findall(rf"\b{name}\b(?! = _define)", text)) > 0, name
