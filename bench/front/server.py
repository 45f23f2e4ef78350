"""The server that is measured: all of the real one but its engine.

python -m bench.front.server text|tools STEP_MS
"""

from __future__ import annotations

import sys

from bench.front.scripted import served_model
from octavo.config.server import ServerConfig
from octavo.engine.remote import RemoteEngine
from octavo.logs import start_logging
from octavo.serve.front import Front
from octavo.serve.launch import bind, run_until_done


def main(script: str, step_ms: str) -> int:
    start_logging()
    config = ServerConfig(port=0, disable_log_stats=True, enable_auto_tool_choice=True, tool_call_parser="hermes")

    async def start() -> Front:
        return Front(await RemoteEngine.start("bench.front.scripted:build", (script, float(step_ms) / 1000)), served_model(), config)

    return run_until_done(config, bind(config), start)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
