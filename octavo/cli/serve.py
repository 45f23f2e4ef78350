"""`octavo serve`: an OpenAI-compatible server of one model."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from octavo.cli.flags import Settings
from octavo.config.engine import ENGINE_TOPICS
from octavo.config.server import ServerConfig


@dataclass(frozen=True)
class ServeOptions:
    """All flags of `serve` are settings of the engine and of the server."""


OPTIONS = ServeOptions
TOPICS = (ServerConfig, *ENGINE_TOPICS)


def run(settings: Settings) -> int:
    asked, server = settings.engine(), settings.topic(ServerConfig)
    print(f"octavo serve {asked.model.model}; settings:\n{settings.describe()}", file=sys.stderr)
    from octavo.serve.listen import bind, num_processes

    try:  # before the heavy imports, so that a busy port is told at once
        listener = None if asked.parallel.headless else bind(server, shared=num_processes(asked, server) > 1)
    except OSError as error:
        print(f"octavo serve: {error}", file=sys.stderr)
        return 1
    from octavo.serve.start import serve

    return serve(asked, server, listener)
