"""An engine for tests of several: the real loop and scheduler over the laws' model, in a process of its own."""

from __future__ import annotations

import os
import time

from octavo.config.resolved import Resolved
from octavo.core.kv.cache import KVCache
from octavo.core.scheduler import Scheduler
from octavo.engine.loop import EngineLoop
from octavo.types import Request, SamplingParams
from tests.laws.fake import FakeExecutor, FakeModel, make_layout

MODEL = FakeModel()
DEADLY = 667  # a prompt that begins so ends the process in its first step
SLOW = 668  # a prompt that begins so makes all further steps slow


class Dying(FakeExecutor):
    step_s = 0.001

    def submit(self, plan):
        for admission in plan.admitted:
            if admission.tokens[0] == DEADLY:
                os._exit(7)
            if admission.tokens[0] == SLOW:
                self.step_s = 0.1
        time.sleep(self.step_s)
        return super().submit(plan)

    def check(self):
        pass

    def close(self):
        pass


class Loop(EngineLoop):
    def ask(self, what: str):
        return [{"kind": "none"}] if what == "advice" else super().ask(what)


def build(number, outbox, num_blocks: int = 64):
    settings = Resolved(max_model_len=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, overlap_depth=1)
    layout = make_layout(num_blocks, 4)
    executor = Dying(layout, settings.max_num_seqs, MODEL)
    loop = Loop(Scheduler(settings, KVCache(layout)), executor, outbox, time.monotonic, 1)
    return loop, {"max_model_len": 64 - number, "kv_tokens": num_blocks * 4, "block_size": 4, "number": number}


def build_all_but_the_second(number, outbox):
    if number == 1:
        raise ValueError("there is no second device")
    return build(number, outbox)


def request(name: str, *tokens: int, max_tokens: int = 8) -> Request:
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=5))


def text(one: Request) -> list[int]:
    """What the model says to it."""
    return MODEL.continuation(one.prompt_token_ids, one.params.max_tokens, 5)


