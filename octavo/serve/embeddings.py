"""/v1/embeddings: vectors of texts, from the model's last hidden state."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from octavo.serve import sse
from octavo.serve.errors import ApiError
from octavo.serve.front import Front, merged
from octavo.serve.prompts import prompt_list
from octavo.text.pooling import PoolingState, as_bytes
from octavo.types import EmbeddingRequestOutput, InvalidRequest


class PoolingBody(msgspec.Struct, kw_only=True):
    """What every route that compares texts has in common."""

    model: str | None = None
    user: Any = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None


class EmbeddingBody(PoolingBody, kw_only=True):
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class PoolingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingList(msgspec.Struct):
    id: str
    model: str
    data: list[Embedding]
    usage: PoolingUsage
    object: str = "list"


async def embeddings(front: Front, body: EmbeddingBody, label: str) -> Embeddings:
    """Raises `ApiError` and `InvalidRequest`."""
    return Embeddings(pooled(front, body, body.input, "input", label, body.dimensions, body.normalize is not False), body, label)


def pooled(
    front: Front, body: PoolingBody, prompts: Any, field: str, label: str, dimensions: int | None = None, normalize: bool = True
) -> Pooled:
    """Checked requests for a vector of each prompt; `field` is where the body has them. Raises `ApiError` and `InvalidRequest`."""
    front.check_model(body.model)
    if body.cache_salt == "":
        raise ApiError(400, "`cache_salt` must be a text of at least one character.", param="cache_salt")
    space = front.model.space
    space.check(dimensions)
    params = space.params(body.truncate_prompt_tokens)
    try:
        requests = [
            front.model.intake.request(
                front.engine_id(label),
                prompt,
                params,
                arrival_s=front.clock(),
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
                tenant=front.tenant(body.user),
                add_special_tokens=body.add_special_tokens is not False,
            )
            for prompt in prompt_list(prompts, field)
        ]
    except InvalidRequest as error:
        error.field = field if error.field == "prompt" else error.field
        raise
    front.check_room(requests)
    return Pooled(front, [PoolingState(request, space, dimensions, normalize, front.clock) for request in requests])


@dataclass(frozen=True)
class Pooled:
    """Prompts whose vectors are wanted."""

    front: Front
    states: Sequence[PoolingState]

    async def vectors(self) -> list[Sequence[float]]:
        """In the order of the prompts. Raises `EngineFailed` and `EngineDead`."""
        outputs: dict[int, EmbeddingRequestOutput] = {}
        async with aclosing(merged([self.front.follow(state) for state in self.states])) as stream:
            async for place, output in stream:
                outputs[place] = output
        return [outputs[place].outputs.embedding for place in range(len(self.states))]

    @property
    def usage(self) -> PoolingUsage:
        count = sum(len(state.request.prompt_token_ids) for state in self.states)
        return PoolingUsage(count, count)


class OnlyWhole:
    """A call whose answer is never a stream."""

    def events(self) -> AsyncGenerator[bytes]:
        raise AssertionError("its body has no `stream`")

    def failure(self, error: ApiError) -> bytes:
        raise AssertionError("its body has no `stream`")


@dataclass(frozen=True)
class Embeddings(OnlyWhole):
    pooled: Pooled
    body: EmbeddingBody
    id: str

    async def whole(self) -> bytes:
        encode = _base64 if self.body.encoding_format == "base64" else list[float]
        data = [Embedding(index, encode(vector)) for index, vector in enumerate(await self.pooled.vectors())]
        return sse.encode(EmbeddingList(self.id, self.pooled.front.model.names[0], data, self.pooled.usage))


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(as_bytes(vector)).decode()
