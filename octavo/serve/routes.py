"""The small routes: models, tokens, health, load, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.serve.errors import ApiError, unknown_model
from octavo.serve.front import Front
from octavo.serve.messages_input import CountBody, prompt_of
from octavo.serve.prompts import chat_text, encoded
from octavo.serve.schemas import ChatBody, DetokenizeBody, TokenizeBody, TokenizeChatBody, convert, parse, parse_json
from octavo.types import InvalidRequest


def reply(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def plain_routes(front: Front) -> list[Route]:
    def route(path: str, answer: Callable[[Front, Request], Awaitable[Response]], *methods: str) -> Route:
        async def endpoint(request: Request) -> Response:
            return await answer(front, request)

        endpoint.__doc__ = answer.__doc__
        return Route(path, endpoint, methods=list(methods or ("GET",)))

    return [
        route("/v1/models", models),
        route("/v1/models/{name:path}", model),
        route("/v1/messages/count_tokens", count_tokens, "POST"),
        route("/tokenize", tokenize, "POST"),
        route("/render", render, "POST"),
        route("/detokenize", detokenize, "POST"),
        route("/reset_prefix_cache", reset_prefix_cache, "POST"),
        route("/health", health),
        route("/health/live", live),
        route("/health/ready", ready),
        route("/health/progress", progress),
        route("/ping", health, "GET", "POST"),
        route("/load", load),
        route("/advice", advice),
        route("/version", version),
        route("/metrics", metrics),
    ]


def _card(front: Front, name: str) -> dict[str, Any]:
    model = front.model
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "octavo",
        "root": model.root or name,
        "parent": None,
        "max_model_len": model.intake.max_model_len,
    }


async def models(front: Front, request: Request) -> Response:
    """Names of the model."""
    return reply({"object": "list", "data": [_card(front, name) for name in front.model.names]})


async def model(front: Front, request: Request) -> Response:
    """One of them."""
    name = request.path_params["name"]
    if name not in front.model.names:
        raise unknown_model(name, "`, `".join(front.model.names))
    return reply(_card(front, name))


async def tokenize(front: Front, request: Request) -> Response:
    """Token ids of a text or of messages."""
    value = parse_json(await request.body())
    if "messages" in value:
        body = convert(value, TokenizeChatBody)
        front.check_model(body.model)
        text, add_special_tokens = await chat_text(front, body)
    else:
        body = convert(value, TokenizeBody)
        front.check_model(body.model)
        text, add_special_tokens = body.prompt, body.add_special_tokens is not False
    ids = await encoded(front, text, add_special_tokens)
    tokens = [front.model.tokenizer.id_to_token(token_id) for token_id in ids] if body.return_token_strs else None
    return reply({"count": len(ids), "max_model_len": front.model.intake.max_model_len, "tokens": ids, "token_strs": tokens})


async def render(front: Front, request: Request) -> Response:
    """The prompt that a chat becomes."""
    body = await parse(await request.body(), ChatBody)
    front.check_model(body.model)
    text, add_special_tokens = await chat_text(front, body)
    ids = await encoded(front, text, add_special_tokens)
    return reply({"prompt": text, "prompt_token_ids": ids, "count": len(ids), "max_model_len": front.model.intake.max_model_len})


async def count_tokens(front: Front, request: Request) -> Response:
    """How long the prompt of /v1/messages would be."""
    body = await parse(await request.body(), CountBody)
    front.check_model(body.model)
    text, add_special_tokens = await chat_text(front, prompt_of(body))
    return reply({"input_tokens": len(await encoded(front, text, add_special_tokens))})


async def detokenize(front: Front, request: Request) -> Response:
    """Text of token ids."""
    body = await parse(await request.body(), DetokenizeBody)
    front.check_model(body.model)
    vocab_size = front.model.intake.vocab_size
    for token_id in body.tokens:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest("tokens", token_id, f"token ids are integers from 0 to {vocab_size - 1}")
    return reply({"prompt": front.model.tokenizer.decode(body.tokens, skip_special_tokens=False)})


async def reset_prefix_cache(front: Front, request: Request) -> Response:
    """Forget cached prefixes. False: blocks were in use, so nothing was forgotten."""
    return reply({"reset": await front.engine.reset_prefix_cache()})


async def health(front: Front, request: Request) -> Response:
    """Whether the engine lives and gets on with its work."""
    if front.engine.dead is None and (reason := front.progress.stalled) is not None:
        return reply({"status": "stalled", "reason": reason}, 503)
    return await live(front, request)


async def live(front: Front, request: Request) -> Response:
    """Whether the engine lives."""
    if front.engine.dead is not None:
        return reply({"status": "dead", "reason": front.engine.dead}, 503)
    return reply({"status": "draining" if front.draining else "ok"})


async def progress(front: Front, request: Request) -> Response:
    """Whether the engine ends steps while there is work, and how many it has ended."""
    reason = front.engine.dead or front.progress.stalled
    told = {"status": "stalled", "reason": reason} if reason else {"status": "working" if front.metrics.num_running else "idle"}
    return reply({**told, **front.progress.facts()}, 503 if reason else 200)


async def ready(front: Front, request: Request) -> Response:
    """Whether new requests are taken."""
    try:
        front.check_room()
    except ApiError as error:
        return reply({"status": "not ready", "reason": str(error)}, 503)
    except RuntimeError as error:
        return reply({"status": "dead", "reason": str(error)}, 503)
    if front.model.can_sleep and any(stats.counters.get("sleep_level") for stats in await front.engine.stats()):
        return reply({"status": "not ready", "reason": "the model sleeps; POST /wake_up"}, 503)
    return reply({"status": "ready"})


async def load(front: Front, request: Request) -> Response:
    """Requests in the server, those of them that have no token yet, and how long a new one would wait for its first."""
    queue, wait_s = front.queue, front.queue.wait_s()
    waiting = {"num_requests_waiting": queue.num_requests, "num_tokens_waiting": queue.num_tokens}
    return reply({"server_load": front.metrics.num_running, **waiting, "expected_ttft_s": None if wait_s is None else round(wait_s, 3)})


async def advice(front: Front, request: Request) -> Response:
    """What holds the engine back, by its last minute, and which flag to move."""
    return reply({"findings": await front.engine.advice()})


async def version(front: Front, request: Request) -> Response:
    """The version of this server."""
    from octavo import __version__

    return reply({"version": __version__})


async def metrics(front: Front, request: Request) -> Response:
    """Metrics, in Prometheus' text."""
    await front.read_stats()
    return Response(front.metrics.text(), media_type=CONTENT_TYPE_LATEST)
