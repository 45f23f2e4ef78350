"""`octavo generate`: continue prompts and print the text."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

from octavo.cli.flags import CommandLineError, Settings
from octavo.cli.sampling import SamplingOptions
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.fields import Flag
from octavo.host.torch_ahead import load_torch_ahead

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class GenerateOptions:
    """What to continue, and how to print it."""

    prompt: Annotated[tuple[str, ...], Flag("texts to continue; without it standard input is one prompt", short=("-p",))] = ()
    json: Annotated[bool, Flag("print one JSON object a prompt: prompt, text, token ids, finish reason")] = False


OPTIONS = GenerateOptions
TOPICS = (SamplingOptions, *ENGINE_TOPICS)


def run(settings: Settings) -> int:
    options, sampling = settings.topic(GenerateOptions), settings.topic(SamplingOptions)
    prompts = list(options.prompt) or _standard_input()
    settings.engine()  # before the heavy imports, so that a wrong flag is told at once
    load_torch_ahead()
    from octavo.llm import LLM

    llm = LLM(**settings.engine_flags())
    params = sampling.params(llm.get_default_sampling_params(), DEFAULT_MAX_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=len(prompts) > 1)
    for output in outputs:
        answer = output.outputs[0]
        if options.json:
            print(
                json.dumps(
                    {"prompt": output.prompt, "text": answer.text, "token_ids": answer.token_ids, "finish_reason": answer.finish_reason}
                )
            )
        else:
            print(answer.text if len(outputs) == 1 else f"--- {output.prompt}\n{answer.text}")
    return 0


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise CommandLineError('give a prompt: -p "The capital of France is"')
    text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise CommandLineError("standard input is empty; give a prompt with -p")
    return [text]
