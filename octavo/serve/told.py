"""A chat's one answer as parts while it is told, for the routes that have forms of their own for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo.serve.chat import Chat
from octavo.serve.front import Front
from octavo.serve.parts import Part
from octavo.text.pooling import EngineFailed
from octavo.types import RequestOutput


class Told:
    """Runs a chat; what it cost, and how it ended, is known once `parts` has ended."""

    def __init__(self, front: Front, chat: Chat) -> None:
        self.chat = chat
        self.finish_reason: str | None = None  # as OpenAI's chats say it
        self.stop_reason: int | str | None = None
        self.num_prompt_tokens = len(chat.request.prompt_token_ids)
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self._front = front
        self._reader = chat.form.reader()

    async def parts(self) -> AsyncGenerator[Sequence[Part]]:
        """What is new after each step, perhaps nothing yet. Raises `EngineFailed` and `EngineDead`."""
        async with aclosing(self._front.run(self.chat.request, self.chat.prompt)) as outputs:
            async for output in outputs:
                yield self._parts(output)

    def call_id(self, call: int) -> str:
        return self.chat.form.call_id(self.chat.request.id, 0, call)

    def _parts(self, output: RequestOutput) -> Sequence[Part]:
        (one,) = output.outputs
        if one.finish_reason == "error":
            raise EngineFailed(str(one.stop_reason))
        self.num_output_tokens += len(one.token_ids)
        self.num_cached_tokens = output.num_cached_tokens or 0
        parts = self._reader.push(one.text, last=one.finish_reason is not None)
        if one.finish_reason is not None:
            self.finish_reason = self.chat.form.finish_reason(one.finish_reason, self._reader.num_calls)
            self.stop_reason = one.stop_reason
        return parts
