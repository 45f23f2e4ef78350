"""`octavo COMMAND ...`: finds the command's file, reads its settings and runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VERSION_WORDS = ("--version", "-V", "version")


@dataclass(frozen=True)
class Command:
    """One command. Its module has OPTIONS (a dataclass of its own flags), TOPICS (of the shared ones) and `run(settings) -> exit code`."""

    summary: str
    usage: str
    positional: str | None = "model"
    quiet: bool = False  # log warnings only, unless OCTAVO_LOGGING_LEVEL says otherwise

    def module(self, name: str) -> Any:
        return importlib.import_module(f"octavo.cli.{name.replace(' ', '_')}")


COMMANDS = {
    "serve": Command("Serve a model over HTTP, in OpenAI's API.", "serve [MODEL] [flags]"),
    "generate": Command("Continue prompts and print the text.", "generate [MODEL] -p PROMPT [flags]", quiet=True),
    "chat": Command("Talk to a model, loaded here or behind --url.", "chat [MODEL] [flags]", quiet=True),
    "batch": Command("Answer a file of requests, in OpenAI's batch form.", "batch [MODEL] -i IN.jsonl -o OUT.jsonl [flags]"),
    "bench": Command(
        "Measure latency, throughput or the cost of steps.", "bench latency|throughput|cost|serve [--case dec256] [flags]", "kind"
    ),
    "bench serve": Command(
        "Measure a running server under a load.", "bench serve [--base-url URL] [--request-rate X] [flags]", None, quiet=True
    ),
    "bench startup": Command(
        "Measure starts of a model, with empty and filled caches, at each level.",
        "bench startup [MODEL] [--levels 0 1 2 3] [--caches empty filled] [--repeat 3] [flags]",
        quiet=True,
    ),
    "bench validate": Command(
        "Compare the simulator with this machine.", "bench validate [MODEL] [--duration S] [--output-json FILE] [flags]"
    ),
    "bench knobs": Command(
        "Move one flag at a time and show what each does.", "bench knobs [MODEL] [--output-html FILE] [flags]", quiet=True
    ),
    "plan": Command("Say what fits on a device; no weights and no GPU are needed.", "plan [MODEL] [--device h200] [flags]"),
    "doctor": Command("Say what of this machine keeps a model from running well.", "doctor [-tp N] [flags]", None, quiet=True),
    "simulate": Command("Say how a load would be served; no weights and no GPU are needed.", "simulate [MODEL] [--device h200] [flags]"),
    "tune": Command(
        "Find the settings that serve a load best, and measure them.",
        "tune [MODEL] [--slo ttft_p99<200ms,itl_p99<50ms] [--workload LOAD] [flags]",
        quiet=True,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in VERSION_WORDS:
        from octavo import __version__

        print(__version__)
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    name, rest = split(words)
    if name not in COMMANDS:
        print(f"octavo: {name!r} is no command.\n\n{overview()}", file=sys.stderr)
        return 2
    return run(name, rest)


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command's name, of two words where there is one of that name, and what follows it."""
    two = " ".join(words[:2])
    return (two, list(words[2:])) if two in COMMANDS else (words[0], list(words[1:]))


def overview() -> str:
    lines = [f"  {name:<13}{command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: octavo COMMAND [flags]", "", *lines, "", "octavo COMMAND --help tells more; octavo --version the version."])


def run(name: str, argv: list[str]) -> int:
    """Run one command; the exit code is 0, 1 (it failed), 2 (asked wrongly) or 130 (interrupted)."""
    from octavo.cli import flags, help
    from octavo.config.fields import ConfigError, UnknownSetting
    from octavo.env import BadEnvironment
    from octavo.logs import start_logging
    from octavo.types import InvalidRequest

    command = COMMANDS[name]
    module = command.module(name)
    topics = (module.OPTIONS, *module.TOPICS)
    asked = help.asked_help(argv)
    if asked is not None:
        print(help.render(name, command.summary, command.usage, topics, asked))
        return 0
    try:
        start_logging("WARNING" if command.quiet else None)
        return module.run(flags.parse(argv, topics, command.positional))
    except (flags.CommandLineError, ConfigError, UnknownSetting, BadEnvironment, InvalidRequest) as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if not type(error).__module__.startswith("octavo."):
            raise  # nobody foresaw it: the stack helps
        print(f"octavo {name}: {error}", file=sys.stderr)
        return 1
