"""The documents say what the code does: files, metrics, routes, fields and commands that they name are there, and none is left out."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.cli.flags import parse
from octavo.cli.main import COMMANDS, split
from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.kv.layout import lay_out
from octavo.core.kv.specs import PagedSpec
from octavo.core.scheduler import Scheduler
from octavo.engine.link import stats_from
from octavo.engine.loop import EngineLoop
from octavo.metrics import FrontMetrics
from octavo.serve import schemas
from octavo.serve.batches import batch_routes
from octavo.serve.dashboard.routes import dashboard_routes
from octavo.serve.files import file_routes
from octavo.serve.profile import profile_routes
from octavo.serve.routes import plain_routes
from octavo.serve.sleep import sleep_routes

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tree() -> set[str]:
    """Paths in the tree of docs/architecture.md."""
    block = page("docs/architecture.md").split("## The tree\n")[1].split("\n\n")[0].strip("\n")
    found: set[str] = set()
    folders: list[str] = []
    for line in block.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2 - 2, line.split()[0]
        folders[depth:] = [name] if name.endswith("/") else []
        found.add("".join(folders) + ("" if name.endswith("/") else name))
    return found


def test_the_tree_names_what_is_there() -> None:
    assert [path for path in tree() if not (ROOT / path).exists()] == []


def test_the_tree_leaves_no_folder_and_no_top_file_out() -> None:
    source = ROOT / "octavo"
    folders = {f"octavo/{path.relative_to(source)}/" for path in source.rglob("*") if path.is_dir() and (path / "__init__.py").exists()}
    top = {f"octavo/{path.name}" for path in source.glob("*.py")}
    assert (folders | top) - tree() == set()


def test_links_between_pages_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_metric_has_a_line() -> None:
    settings = Resolved()
    cache = KVCache(lay_out([PagedSpec(1, 8)], settings.block_size, 1 << 20), True)
    metrics = FrontMetrics("m", 64)
    loop = EngineLoop(Scheduler(settings, cache), None, None, lambda: 0.0)  # pyright: ignore[reportArgumentType]  # it runs no step
    metrics.engines = [stats_from(loop.stats())]
    told = {family.name.removeprefix("octavo:") for family in metrics.collect()}
    documented = set(re.findall(r"^\| `(\w+)`", page("docs/metrics.md"), re.MULTILINE))
    assert told - documented == set(), "without a line in docs/metrics.md"
    assert documented - told == set(), "in docs/metrics.md, and gone"


@pytest.mark.parametrize(
    "body",
    [schemas.CompletionBody, schemas.ChatBody, schemas.TokenizeBody, schemas.DetokenizeBody, schemas.StreamOptions, schemas.OctavoFacts],
)
def test_every_field_is_documented(body: type[msgspec.Struct]) -> None:
    named = set(re.findall(r"`([\w.]+)`", page("docs/api.md")))
    assert [name for name in body.__struct_fields__ if name not in named] == []


def test_every_route_is_documented() -> None:
    text = page("docs/api.md")
    makers: tuple[Any, ...] = (plain_routes, dashboard_routes, sleep_routes, profile_routes, file_routes, batch_routes)
    routes = [route for make in makers for route in make(None)]  # only their paths are asked for
    for path in ("/v1/completions", "/v1/chat/completions", *(route.path.replace("{name:path}", "{name}") for route in routes)):
        assert f"`{path}`" in text, path


def test_commands_in_the_pages_can_be_given() -> None:
    count = 0
    for path in PAGES:
        for line in re.findall(r"^(?:    |\$ )(octavo [a-z]+ .*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(line, comments=True)
            if not any(mark in line for mark in ("[", "COMMAND", "|", "IN.jsonl")):
                name, rest = split(words[1:])
                command = COMMANDS[name]
                module = command.module(name)
                settings = parse(rest, (module.OPTIONS, *module.TOPICS), command.positional)
                settings.engine()
                count += 1
    assert count >= 5, "the pages show commands"


def test_python_in_the_pages_compiles() -> None:
    for path in PAGES:
        for code in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            compile(code, path.name, "exec", flags=0x2000)  # with await at the top
