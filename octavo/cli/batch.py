"""`octavo batch`: answers a file of requests with the same code that serves them over HTTP, and goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from octavo.cli.flags import CommandLineError, Settings
from octavo.config.engine import ENGINE_TOPICS, EngineConfig
from octavo.config.fields import Flag, at_least
from octavo.config.server import ServerConfig
from octavo.serve.batch_file import BadLine, Line, NoAnswers, answered_well, read_lines, resume


@dataclass(frozen=True)
class BatchOptions:
    """Which file, and how many requests at once."""

    input_file: Annotated[str, Flag("JSON lines with custom_id, url and body, or - for standard input", short=("-i",))] = ""
    output_file: Annotated[str, Flag("JSON lines of answers; what it holds already is not asked again", short=("-o",))] = ""
    concurrency: Annotated[int, Flag("requests given to the engine at once")] = 1024

    def __post_init__(self) -> None:
        at_least("concurrency", self.concurrency, 1)


OPTIONS = BatchOptions
TOPICS = ENGINE_TOPICS


def run(settings: Settings) -> int:
    options: BatchOptions = settings.topic(BatchOptions)
    if not options.input_file or not options.output_file:
        raise CommandLineError("name both files: octavo batch -i requests.jsonl -o answers.jsonl")
    output = Path(options.output_file)
    try:
        answered = resume(output)
        output.open("a").close()  # before anything is loaded
    except (OSError, NoAnswers) as error:
        raise CommandLineError(f"--output-file {output}: {error}") from None
    lines = [line for line in read_lines(_input(options.input_file)) if not answered.has(line)]
    if not lines:
        print("nothing is left to answer", file=sys.stderr)
        return 0
    return asyncio.run(_answer_file(settings.engine(), lines, output, options.concurrency))


def _input(path: str) -> list[str]:
    if path == "-":
        return sys.stdin.readlines()
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")  # a text in JSON may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise CommandLineError(f"--input-file {path} cannot be read: {error}") from None


async def _answer_file(asked: EngineConfig, lines: Sequence[Line | BadLine], output: Path, concurrency: int) -> int:
    from octavo.progress import Progress
    from octavo.serve.batch_calls import answer
    from octavo.serve.start import checked_template, start_front

    front = await start_front(asked, ServerConfig(), checked_template(asked))
    kinds: Counter[str] = Counter()
    try:
        with output.open("a", encoding="utf-8") as file, Progress(len(lines), "requests") as progress:

            def keep(record: dict[str, Any]) -> None:
                file.write(json.dumps(record) + "\n")
                file.flush()  # what is answered is kept, whatever happens next
                kinds["answered" if answered_well(record) else "refused"] += 1
                progress.advance()

            await answer(front, lines, keep, concurrency)
    finally:
        await front.engine.close()
    print(f"{kinds['answered']} answered, {kinds['refused']} refused: {output}", file=sys.stderr)
    return 0
