"""The project's files as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """One Python file of the package."""

    path: Path

    @property
    def name(self) -> str:
        """Below octavo/, such as core/scheduler.py."""
        return self.path.relative_to(ROOT / "octavo").as_posix()

    @property
    def module(self) -> str:
        """Such as octavo.core.scheduler; a package is its `__init__`'s name."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    def classes(self) -> Iterator[ast.ClassDef]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def imports(self) -> set[str]:
        """Every module it imports, at the top or inside a function. `from octavo.core import plan` counts as octavo.core.plan."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules()
                found |= inside or {node.module}
        return found


@cache
def sources() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted((ROOT / "octavo").rglob("*.py")))


@cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources())
