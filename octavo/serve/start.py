"""From settings to a running server: the engine in its process, and what the front must know of the model."""

from __future__ import annotations

import socket
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from octavo.async_llm import intake_of, start_engine, started_engine
from octavo.cluster.headless import serve_headless
from octavo.config.engine import EngineConfig
from octavo.config.fields import ConfigError
from octavo.config.server import ServerConfig
from octavo.engine.client import EngineDead
from octavo.ledger import Ledger
from octavo.models.checkpoint import Checkpoint
from octavo.serve.beside import Others
from octavo.serve.front import Front, ServedModel
from octavo.serve.launch import run_until_done
from octavo.serve.listen import num_processes
from octavo.text.intake import Intake
from octavo.text.pooling import EmbeddingSpace
from octavo.text.template import ChatTemplate, template_source

START = "octavo.serve.start:start_front"


def serve(asked: EngineConfig, config: ServerConfig, listener: socket.socket | None) -> int:
    """Serve on the port that was taken, or without one run the engines for another host, until told to stop; the exit code. Raises
    `ConfigError` and what opening a model raises."""
    if listener is None:
        return serve_headless(asked)
    template = checked_template(asked)
    try:
        ledger = Ledger(num_processes(asked, config))
        start = asked, config, template
        others = partial(Others.start, listener, ledger, config, START, start)
        return run_until_done(config, listener, lambda: start_front(*start, started_engine(asked), ledger), others)
    except (OSError, EngineDead) as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        return 1


async def start_front(
    asked: EngineConfig,
    config: ServerConfig,
    template: str | None = None,
    starting: Coroutine[Any, Any, Any] | None = None,
    ledger: Ledger | None = None,
) -> Front:
    """The engine, started in its process or as `starting` finds it, behind a front. `template` goes over the model's own.

    Raises what starting an engine raises.
    """
    engine, checkpoint = await start_engine(asked, starting)
    intake = intake_of(asked, checkpoint, dict(engine.info))
    space = EmbeddingSpace.of(engine.info["hidden_size"], checkpoint.config, checkpoint.pooler, asked.model.pooling_type)
    front = Front(engine, served_model(asked, config, checkpoint, intake, space, template), config, ledger=ledger)
    front.metrics.startup_s = dict(engine.info["timeline"])
    return front


def checked_template(asked: EngineConfig) -> str | None:
    """The chat template that was asked for, before anything is loaded. Raises `ConfigError`."""
    if asked.model.skip_tokenizer_init:
        raise ConfigError("skip_tokenizer_init", True, "the server works with texts and needs the tokeniser")
    return template_source(asked.model.chat_template)


def served_model(
    asked: EngineConfig, config: ServerConfig, checkpoint: Checkpoint, intake: Intake, space: EmbeddingSpace, template: str | None
) -> ServedModel:
    tokenizer = checkpoint.tokenizer()
    special = tokenizer.special_tokens
    source = template or checkpoint.chat_template
    return ServedModel(
        names=asked.model.served_model_name or (asked.model.model,),
        tokenizer=tokenizer,
        intake=intake,
        space=space,
        template=None if source is None else ChatTemplate(source, special, config.chat_template_content_format),
        bos_token=special.get("bos_token"),
        root=asked.model.model,
        can_sleep=asked.model.enable_sleep_mode,
    )
