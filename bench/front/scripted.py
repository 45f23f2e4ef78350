"""A model that says what is written for it, one token a step of each text, and its engine in a process of its own behind the real wire."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers

from octavo.engine.messages import Abort, Add, Ask, Command, Finish, Stop
from octavo.engine.orders import Ahead
from octavo.serve.front import ServedModel
from octavo.text.intake import Intake
from octavo.text.pooling import EmbeddingSpace
from octavo.text.template import ChatTemplate
from octavo.text.tokenizer import Tokenizer, byte_letters
from octavo.types import FinishReason, Request, SequenceOutput

PIECE = re.compile(r" ?[a-zA-Z]+|\s|[^\x00-\x7f]|[^\w\s]+|\w+", re.ASCII)
PROSE = """The engine says one token a step, and the front makes text of it; a café in Zürich costs 4 € now.
Some pieces < begin like a stop string > and are none: they are held back and let go 🙂. \
Stop words are looked for in every text, "quoted" or not, as it grows.
"""
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Zürich", "days": [1, 2, 3], "note": "one \\"day\\" more"}}\n</tool_call>\n'
SCRIPTS = {"text": PROSE, "tools": PROSE + CALL * 2}  # the second is about half prose
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
END = "</s>"
MAX_MODEL_LEN = 1 << 24  # streams go on until their client leaves


def spelt(piece: str) -> str:
    """An ASCII piece in the letters of bytes."""
    return piece.replace(" ", "Ġ").replace("\n", "Ċ")


def tokenizer() -> Tokenizer:
    """One token for each ASCII word of the scripts, one for each byte: so other characters come in pieces."""
    words = sorted({spelt(piece) for piece in PIECE.findall("".join(SCRIPTS.values())) if piece.isascii()})
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys((*byte_letters(), *words)))}
    core = Core(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([END])
    return Tokenizer(core, eos_token_id=core.token_to_id(END))


def script_ids(name: str) -> list[int]:
    """A script's tokens."""
    words = tokenizer()
    ids: list[int] = []
    for piece in PIECE.findall(SCRIPTS[name]):
        whole = words.token_to_id(spelt(piece)) if piece.isascii() else None
        ids += words.encode(piece) if whole is None else [whole]
    assert words.decode(ids) == SCRIPTS[name]
    return ids


def served_model() -> ServedModel:
    words = tokenizer()
    intake = Intake(words, MAX_MODEL_LEN, words.vocab_size, words.eos_token_ids)
    return ServedModel(("scripted",), words, intake, EmbeddingSpace(4), ChatTemplate(TEMPLATE))


class ScriptedLoop:
    """Has the face of `EngineLoop`. A step takes `step_s`, or as long as telling its news takes."""

    def __init__(self, script: Sequence[int], step_s: float, outbox: Any) -> None:
        self.stopping, self.wakes = False, ()
        self.ahead = Ahead(lambda *order: [])
        self._script, self._step_s, self._outbox = script, step_s, outbox
        self._live: dict[tuple[str, int], tuple[Request, int]] = {}  # continuation -> its request, tokens told
        self._due_s = 0.0
        self._counts = {"num_steps": 0, "prompt_tokens": 0, "generation_tokens": 0}

    @property
    def busy(self) -> bool:
        return bool(self._live)

    def handle(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Add(request):
                    self._counts["prompt_tokens"] += len(request.prompt_token_ids)
                    self._live |= {(request.id, index): (request, 0) for index in range(request.params.n)}
                case Finish(request_id, index):
                    self._live.pop((request_id, index), None)
                case Abort(request_id):
                    for key in [key for key in self._live if key[0] == request_id]:
                        del self._live[key]
                case Ask():
                    self._outbox.answer(command, self._answer(command.what))
                case Stop(drain):
                    self.stopping = True
                    if not drain:
                        self._live.clear()

    def step(self) -> None:
        if len(self._live) > 1:  # one alone is only asked for what it says
            time.sleep(max(0.0, self._due_s - time.monotonic()))
        self._due_s = time.monotonic() + self._step_s
        news = [self._next(key, request, told) for key, (request, told) in self._live.items()]
        for one in news:
            if one.finish_reason is not None:
                del self._live[one.request_id, one.index]
        self._counts["num_steps"] += 1
        self._counts["generation_tokens"] += len(news)
        self._outbox.send(news)

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._live.clear()

    def _next(self, key: tuple[str, int], request: Request, told: int) -> SequenceOutput:
        token_ids = (self._script[told % len(self._script)],)
        self._live[key] = (request, told + 1)
        ended = FinishReason.LENGTH if told + 1 == request.params.max_tokens else None
        if told == 0:
            return SequenceOutput(*key, token_ids, finish_reason=ended, num_cached_tokens=0, queued_s=0.0)
        return SequenceOutput(*key, token_ids, finish_reason=ended)

    def _answer(self, what: str) -> Any:
        match what:
            case "stats":
                return {"num_requests_running": len({request_id for request_id, _ in self._live}), **self._counts}
            case "advice":
                return []
            case _:
                return True


def build(script: str, step_s: float, outbox: Any) -> tuple[ScriptedLoop, dict[str, Any]]:
    """Called in the engine's process."""
    return ScriptedLoop(script_ids(script), step_s, outbox), {}
