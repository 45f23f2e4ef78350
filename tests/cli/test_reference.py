"""docs/flags.md is what the declarations say."""

from pathlib import Path

from octavo.cli.reference import reference
from octavo.config.compat import FOREIGN
from octavo.config.engine import ENGINE_TOPICS, names_of
from octavo.config.fields import option
from octavo.config.server import ServerConfig

PAGE = Path(__file__).parents[2] / "docs" / "flags.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_page_names_every_flag() -> None:
    text = reference()
    for name in (*names_of((*ENGINE_TOPICS, ServerConfig)), *FOREIGN):
        assert f"`{option(name)}`" in text
