"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}} and the right status."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from octavo.engine.client import ASLEEP, EngineDead
from octavo.text.pooling import EngineFailed
from octavo.types import InvalidRequest

MAX_MESSAGE_CHARACTERS = 2000  # an error never repeats its input at length
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
RETRY_AFTER_S = 1


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """An answer other than 2xx."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, challenge: str = "Bearer",
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self._retry_after_s = retry_after_s
        self._challenge = challenge  # how a client may show who it is
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = message[: MAX_MESSAGE_CHARACTERS - 3] + "..."
        kind = TYPES.get(status, "invalid_request_error")
        self.reply = ErrorReply(ErrorBody(message, kind, param and param[:200], code))

    def body(self) -> bytes:
        return msgspec.json.encode(self.reply)

    @property
    def headers(self) -> Mapping[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": self._challenge}
        return {"Retry-After": str(self._retry_after_s)} if self.status in (429, 503) else {}


def as_api_error(error: Exception) -> ApiError | None:
    """The answer to what went wrong; None for what nobody foresaw."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return _of_request(error)
        case EngineDead():
            return ApiError(503, f"The engine has ended: {error}", code="engine_dead")
        case EngineFailed() if str(error).startswith(ASLEEP):
            return ApiError(503, f"The model takes no requests: {error}.", code="engine_asleep")
        case EngineFailed():
            return ApiError(500, f"The request failed in the engine: {error}", code="engine_error")
        case msgspec.ValidationError():
            return of_schema(str(error))
        case _:
            return None


def of_schema(text: str, body: object = None) -> ApiError:
    """From msgspec's "Expected `int`, got `str` - at `$.max_tokens`", and the body that it says this of, where that is known."""
    reason, _, path = text.partition(" - at `$")
    param = path.removeprefix(".").removesuffix("`")
    if missing := re.search(r"missing required field `(\w+)`", text):
        return ApiError(400, text.replace("`$.", "`").replace(" - at", " at"), param=f"{param}.{missing[1]}" if param else missing[1])
    try:
        for name, index in re.findall(r"\.(\w+)|\[(.+?)\]", path):
            body = body[name or int(index)]  # pyright: ignore[reportIndexIssue]
    except (LookupError, TypeError, ValueError):  # "[...]" stands for a key of a mapping
        return ApiError(400, text.replace("`$.", "`").replace(" - at", " at"), param=param or None)
    return ApiError(400, str(InvalidRequest(param, body, reason[0].lower() + reason[1:])), param=param)


def _of_request(error: InvalidRequest) -> ApiError:
    if "maximum context length" in error.allowed:  # the words and the code that clients look for
        return ApiError(400, error.allowed[0].upper() + error.allowed[1:], param=error.field, code="context_length_exceeded")
    return ApiError(400, str(error), param=error.field)


def unknown_model(name: str, known: str) -> ApiError:
    message = f"The model `{name[:200]}` does not exist; this server has `{known}`."
    return ApiError(404, message, param="model", code="model_not_found")
