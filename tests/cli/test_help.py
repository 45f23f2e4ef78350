"""`--help` in its forms, and what the program does when it is asked wrongly."""

import subprocess
import sys

import pytest

from octavo.cli.main import COMMANDS, main
from octavo.config.compat import FOREIGN
from octavo.config.fields import option, settings_of


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"octavo {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_names_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help=all"]) == 0
    text = capsys.readouterr().out
    module = COMMANDS[name].module(name)
    for topic in (module.OPTIONS, *module.TOPICS):
        assert all(option(setting.name) in text for setting in settings_of(topic))
    assert all(option(foreign) in text for foreign in FOREIGN)


@pytest.mark.parametrize(
    ("asked", "shows"),
    [("cache", "--block-size"), ("CacheConfig", "--block-size"), ("max-model-len", "--max-model-len"),
     ("--max_model_len", "--max-model-len"),
     ("tp", "--tensor-parallel-size"), ("-O", "--optimization-level"), ("kv-cache-memory", "--kv-cache-memory-bytes"),
     ("enable-lora", "is refused"), ("-q", "--quantization"),
     ("cpu-offload-gb", "--cpu-offload-gb is refused"), ("swap-space", "changes nothing"), ("nonsense", "groups: ")],
)  # fmt: skip
def test_help_of_a_group_or_a_flag(asked: str, shows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"--help={asked}"]) == 0
    assert shows in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["fly"], ["serve", "--no-such-flag"], ["serve", "--block-size", "17"], ["serve", "--max-num-sqs=3"]])
def test_asked_wrongly_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err


def test_neither_import_nor_help_brings_in_what_is_heavy() -> None:
    heavy = ("torch", "numpy", "yaml", "tokenizers", "starlette", "transformers", "zmq", "jinja2", "huggingface_hub")
    for code in (
        "import octavo",
        *(f"from octavo.cli.main import main; main({words!r})" for words in (["--help"], ["serve", "--help=all"])),
    ):
        script = f"import sys; {code}; print([name for name in {heavy!r} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", code
