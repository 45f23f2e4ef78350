"""/score and /rerank: how alike texts are, as the cosine of their vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.serve import sse
from octavo.serve.embeddings import OnlyWhole, Pooled, PoolingBody, PoolingUsage, pooled
from octavo.serve.errors import ApiError
from octavo.serve.front import Front
from octavo.text.pooling import cosine
from octavo.types import InvalidRequest


class ScoreBody(PoolingBody, kw_only=True):
    text_1: str | list[str]
    text_2: str | list[str]
    encoding_format: Any = None


class Score(msgspec.Struct):
    index: int
    score: float
    object: str = "score"


class ScoreList(msgspec.Struct):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage
    object: str = "list"


class Document(msgspec.Struct):
    text: str


class RerankBody(PoolingBody, kw_only=True):
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class RankedDocument(msgspec.Struct):
    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct):
    id: str
    model: str
    results: list[RankedDocument]
    usage: PoolingUsage


async def score(front: Front, body: ScoreBody, label: str) -> Scored:
    """One text against each of `text_2`, or as many pairs as there are texts. Raises `ApiError` and `InvalidRequest`."""
    left = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    right = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if not left or not right:
        raise ApiError(400, "`text_1` and `text_2` must hold at least one text.", param="text_2" if left else "text_1")
    if len(left) not in (1, len(right)):
        raise InvalidRequest("text_1", f"{len(left)} texts", f"give one, or as many as in text_2 ({len(right)})")
    return Scored(pooled(front, body, [*left, *right], "text_1", label), len(left), label)


async def rerank(front: Front, body: RerankBody, label: str) -> Reranked:
    """Raises `ApiError` and `InvalidRequest`."""
    if body.top_n is not None and body.top_n < 0:
        raise InvalidRequest("top_n", body.top_n, "it must be at least 0; 0 means all")
    if not body.documents:
        raise ApiError(400, "`documents` must hold at least one document.", param="documents")
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    return Reranked(pooled(front, body, [body.query, *texts], "documents", label), texts, body, label)


@dataclass(frozen=True)
class Scored(OnlyWhole):
    pooled: Pooled
    num_left: int
    id: str

    async def whole(self) -> bytes:
        vectors = await self.pooled.vectors()
        right = vectors[self.num_left :]
        left = vectors[: self.num_left] * (len(right) // self.num_left)
        data = [Score(index, cosine(one, other)) for index, (one, other) in enumerate(zip(left, right, strict=True))]
        return sse.encode(ScoreList(self.id, int(time.time()), self.pooled.front.model.names[0], data, self.pooled.usage))


@dataclass(frozen=True)
class Reranked(OnlyWhole):
    pooled: Pooled
    texts: list[str]
    body: RerankBody
    id: str

    async def whole(self) -> bytes:
        query, *documents = await self.pooled.vectors()
        scores = [cosine(query, document) for document in documents]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.body.top_n or None]
        shown = self.body.return_documents is not False
        results = [RankedDocument(i, scores[i], Document(self.texts[i]) if shown else msgspec.UNSET) for i in order]
        return sse.encode(Ranking(self.id, self.pooled.front.model.names[0], results, self.pooled.usage))
