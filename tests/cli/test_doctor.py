"""`octavo doctor`: a page or JSON about this machine, and an exit code."""

from __future__ import annotations

import json
import socket

import pytest

from octavo.cli.main import main


def test_this_machine_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in told["findings"]}
    assert told["ok"] is True
    assert {"cores", "NUMA", "shared memory", "torch", "compiler", "environment"} <= set(findings)
    assert set(findings["cores"]) == {"name", "severity", "text", "advice"}


def test_an_error_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["doctor", "--port", str(taken.getsockname()[1])]) == 1
    page = capsys.readouterr().out
    assert "ERROR    port" in page
    assert "-> another --port" in page
