"""An engine without a model for tests of processes and wire: it answers each request with its own prompt, one token a step."""

from __future__ import annotations

import os
import time

from octavo.config.fields import ConfigError
from octavo.engine.messages import Abort, Add, Ask, Finish, Stop
from octavo.engine.orders import Ahead
from octavo.types import FinishReason, SequenceOutput


class EchoLoop:
    """Has the face of `EngineLoop`. A prompt of [666] makes it raise, [667] exits hard, [668] hangs in a step."""

    def __init__(self, outbox) -> None:
        self.outbox, self.stopping, self.wakes = outbox, False, ()
        self.ahead = Ahead(lambda *order: [])
        self.live: dict[str, list[int]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.live)

    def handle(self, commands) -> None:
        for command in commands:
            match command:
                case Add(request):
                    self.live[request.id] = list(request.prompt_token_ids)
                case Finish(request_id) | Abort(request_id):
                    self.live.pop(request_id, None)
                case Ask():
                    self.outbox.answer(command, {"num_requests_running": len(self.live), "kv_cache_usage": 0.0, "strange": 3})
                case Stop(drain):
                    self.stopping = True
                    if not drain:
                        self.live.clear()

    def step(self) -> None:
        time.sleep(0.002)
        for request_id, tokens in list(self.live.items()):
            token = tokens.pop(0)
            if token == 666:
                raise RuntimeError("told to fail")
            if token == 667:
                os._exit(7)
            if token == 668:
                time.sleep(600)
            done = not tokens
            self.outbox.send([SequenceOutput(request_id, 0, (token,), finish_reason=FinishReason.STOP if done else None)])
            if done:
                del self.live[request_id]

    def check(self) -> None:
        pass

    def close(self) -> None:
        self.live.clear()


def build(outbox):
    return EchoLoop(outbox), {"hello": "front"}


def build_and_fail(outbox):
    raise ValueError("no such model: use another")


def build_slowly(outbox):
    time.sleep(600)


def build_wrongly(outbox):
    raise ConfigError("max_model_len", 9000, "use at most 8192")
