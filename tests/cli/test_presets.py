"""Presets: settings files of the package, under everything else that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli import serve
from octavo.cli.flags import PRESETS, CommandLineError, parse, preset_names

TOPICS = (serve.OPTIONS, *serve.TOPICS)


def test_there_are_those_that_the_documents_name() -> None:
    assert preset_names() == ["batch", "chat", "long-context"]


@pytest.mark.parametrize("name", preset_names())
def test_each_is_accepted_and_explains_every_line(name: str) -> None:
    settings = parse(["--preset", name], TOPICS)
    settings.engine()
    assert settings.values
    assert set(settings.sources.values()) == {f"preset {name}"}
    lines = (PRESETS / f"{name}.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert all("  # " in line for line in lines[1:])


def test_what_is_said_otherwise_goes_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text("target-itl-ms: 70\n")
    settings = parse(["--preset=chat", "--config", str(tmp_path / "own.yaml"), "--max-num-batched-tokens", "4096"], TOPICS)
    assert settings.engine().scheduler.target_itl_ms == 70
    assert settings.engine().scheduler.max_num_batched_tokens == 4096
    assert settings.engine().scheduler.max_num_partial_prefills == 4


def test_an_unknown_one_is_refused_with_the_known() -> None:
    with pytest.raises(CommandLineError, match="batch, chat, long-context"):
        parse(["--preset", "fast"], TOPICS)
    with pytest.raises(CommandLineError, match="one of batch"):
        parse(["--preset"], TOPICS)
