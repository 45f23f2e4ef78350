"""Log lines go to standard error, unless the program has said where its own go."""

import subprocess
import sys

import pytest

LINE = "import logging; from octavo.logs import start_logging; {before}; start_logging(); logging.getLogger('octavo.x').{level}('told')"


@pytest.mark.parametrize(
    ("before", "level", "env", "told"),
    [
        ("pass", "info", {}, True),
        ("pass", "debug", {}, False),
        ("pass", "debug", {"OCTAVO_LOGGING_LEVEL": "debug"}, True),
        ("start_logging()", "info", {}, True),
        ("start_logging('WARNING')", "info", {}, False),
        ("start_logging('WARNING')", "info", {"VLLM_LOGGING_LEVEL": "INFO"}, True),
        ("logging.basicConfig(filename='/dev/null', level='INFO')", "info", {}, False),
    ],
)
def test_where_lines_go(before: str, level: str, env: dict[str, str], told: bool) -> None:
    command = [sys.executable, "-c", LINE.format(before=before, level=level)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stderr.count("told") == told
    assert done.stdout == ""
