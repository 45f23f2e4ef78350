"""A chat partner behind OpenAI's API, spoken to with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from octavo.cli.sampling import SamplingOptions


class ServerRefused(RuntimeError):
    """The server cannot be reached or gives an error; the text is its message."""


class RemotePartner:
    """A model on a server; the first one that it serves where none is named."""

    def __init__(self, url: str, api_key: str | None, model: str | None, sampling: SamplingOptions) -> None:
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._sampling = {name: value for name, value in asdict(sampling).items() if value not in (None, ())}
        self._model = model or self._first_model()

    def answer(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """The answer as it comes. Raises `ServerRefused`."""
        body = {"model": self._model, "messages": messages, "stream": True, **self._sampling}
        with self._open("/chat/completions", body) as response:
            for line in response:
                data = line.decode("utf-8").strip().removeprefix("data: ")
                if not line.startswith(b"data: ") or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ServerRefused(event["error"]["message"])
                for choice in event["choices"]:
                    if choice["delta"].get("content"):
                        yield choice["delta"]["content"]

    def _first_model(self) -> str:
        with self._open("/models") as response:
            return json.load(response)["data"][0]["id"]

    def _open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            return urllib.request.urlopen(urllib.request.Request(self._base + path, data, self._headers))
        except urllib.error.HTTPError as error:
            raise ServerRefused(f"{self._base}{path} answers {error.code}: {_message(error.read())}") from None
        except (urllib.error.URLError, ValueError) as error:
            raise ServerRefused(f"{self._base}{path} cannot be reached: {getattr(error, 'reason', error)}") from None


def _message(body: bytes) -> str:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200]
