"""The project's log lines, in every process of it alike."""

from __future__ import annotations

import logging

from octavo.env import LOGGING_LEVEL


def start_logging(default: str | None = None) -> None:
    """Write them to standard error, unless the program that runs us has said where its log goes. `default` is the level where the
    environment names none. Raises `BadEnvironment`."""
    log = logging.getLogger("octavo")
    level = LOGGING_LEVEL.get() if default is None or LOGGING_LEVEL.given_as() else default
    if logging.getLogger().handlers or log.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(level)
