"""The server that is measured: all of the real one but its engine.

python -m bench.front.server text|tools STEP_MS [API_PROCESSES]
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from functools import partial
from typing import Any

from bench.front.scripted import served_model
from octavo.config.server import ServerConfig
from octavo.engine.remote import RemoteEngine
from octavo.ledger import Ledger
from octavo.logs import start_logging
from octavo.serve.beside import Others
from octavo.serve.front import Front
from octavo.serve.launch import run_until_done
from octavo.serve.listen import bind


async def front_of(config: ServerConfig, starting: Coroutine[Any, Any, Any], ledger: Ledger) -> Front:
    return Front(await starting, served_model(), config, ledger=ledger)


def main(script: str, step_ms: str, num_processes: str = "1") -> int:
    start_logging()
    config = ServerConfig(port=0, disable_log_stats=True, enable_auto_tool_choice=True, tool_call_parser="hermes")

    ledger = Ledger(int(num_processes))
    listener = bind(config, shared=ledger.num_rows > 1)

    async def start() -> Front:
        return await front_of(config, RemoteEngine.start("bench.front.scripted:build", (script, float(step_ms) / 1000)), ledger)

    others = partial(Others.start, listener, ledger, config, "bench.front.server:front_of", (config,))
    return run_until_done(config, listener, start, others)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
