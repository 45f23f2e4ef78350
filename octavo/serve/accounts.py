"""API keys, each with a name, limits and counts of its own. Whoever shows a key acts on its account; without keys all share one."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.config.fields import ConfigError
from octavo.config.server import ServerConfig
from octavo.ledger import Counts, Ledger
from octavo.serve.errors import ApiError
from octavo.serve.queue import retry_s

ACCOUNT = "octavo.account"  # where in an ASGI scope the account of a request is
MINUTE_S = 60.0
LIMITS = ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute")
COUNTED = ("requests", "requests_refused", "prompt_tokens", "generation_tokens", "requests_running")


@dataclass(frozen=True)
class Limits:
    """Of an account; None: none. Tokens are those of prompts and answers together."""

    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Bucket:
    """So much a minute, at most a minute's worth at once. One that takes more than there is owes it, so nothing is too large for ever."""

    def __init__(self, per_minute: int, now_s: float, ledger: Ledger | None = None) -> None:
        self._per_second = per_minute / MINUTE_S
        self._most = float(per_minute)
        self._state = (ledger or Ledger()).common(3)  # its level, when it was looked at last, what had been taken then
        self._state[0], self._state[1], self._state[2] = self._most, now_s, 0.0

    def wait_s(self, total: int, now_s: float, needed: float = 1.0) -> float:
        """Seconds until `needed`, or all that there can be, is left, when `total` has been taken ever; 0: it is."""
        level, seen_s, seen_total = self._state
        level = min(self._most, level + (now_s - seen_s) * self._per_second) - (total - seen_total)
        self._state[0], self._state[1], self._state[2] = level, now_s, float(total)
        return max(0.0, min(needed, self._most) - level) / self._per_second


class Account:
    """What one key's requests have taken, and may take."""

    def __init__(self, name: str | None, limits: Limits, clock: Callable[[], float], ledger: Ledger | None = None) -> None:
        self.name = name
        self.counts = Counts(COUNTED, ledger)
        self._limits = limits
        self._clock = clock
        per_minute = limits.requests_per_minute, limits.tokens_per_minute
        self._requests, self._tokens = (None if most is None else Bucket(most, clock(), ledger) for most in per_minute)

    def check(self, num_requests: int) -> None:
        """Raise `ApiError` if so many more are over a limit."""
        limits, counts, now_s = self._limits, self.counts, self._clock()
        most = limits.max_concurrent_requests
        if most is not None and counts["requests_running"] + num_requests > most:
            self._refuse(f"{counts['requests_running']} of its requests are running, the limit is {most}", num_requests, 1.0)
        if self._requests is not None and (wait_s := self._requests.wait_s(counts["requests"], now_s, num_requests)) > 0:
            self._refuse(f"it may send {limits.requests_per_minute} requests a minute", num_requests, wait_s)
        total = counts["prompt_tokens"] + counts["generation_tokens"]
        if self._tokens is not None and (wait_s := self._tokens.wait_s(total, now_s)) > 0:
            self._refuse(f"it may use {limits.tokens_per_minute} tokens a minute", num_requests, wait_s)

    def _refuse(self, why: str, num_requests: int, wait_s: float) -> None:
        self.counts.add("requests_refused", num_requests)
        message = f"The API key {self.name!r} has reached its limit: {why}; try again later."
        raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=retry_s(wait_s))

    def started(self, num_prompt_tokens: int) -> None:
        self.counts.add("requests")
        self.counts.add("requests_running")
        self.counts.add("prompt_tokens", num_prompt_tokens)

    def ended(self) -> None:
        self.counts.add("requests_running", -1)


class Accounts:
    """All keys of a server."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float], ledger: Ledger | None = None) -> None:
        ledger = ledger or Ledger()
        self.shared = Account(None, Limits(), clock, ledger)  # where no key is asked for
        self._by_key: list[tuple[bytes, Account]] = []
        for number, key in enumerate(config.api_key):
            self._by_key.append((key.encode(), Account(f"key-{number}", Limits(), clock, ledger)))
        for name, (keys, limits) in {} if config.api_key_file is None else read_keys(config.api_key_file).items():
            account = Account(name, limits, clock, ledger)
            self._by_key += [(key.encode(), account) for key in keys]

    @property
    def guarded(self) -> bool:
        return bool(self._by_key)

    def of(self, shown: bytes) -> Account | None:
        """Whose key it is. Every key is compared, in constant time: how long it takes tells nothing."""
        found = [account for key, account in self._by_key if hmac.compare_digest(shown, key)]
        return found[0] if found else None

    def named(self, name: str | None) -> Account | None:
        """The one of that name, if it has a key still."""
        return next((account for _, account in self._by_key if account.name == name), None)

    def counts(self) -> Mapping[str, Counts]:
        """By name."""
        return {account.name: account.counts for _, account in self._by_key if account.name is not None}


def read_keys(path: str) -> dict[str, tuple[tuple[str, ...], Limits]]:
    """Keys and limits by name, from a YAML or JSON file: `NAME: {key: KEY or [KEY, ...], limit: number, ...}`. Raises `ConfigError`."""
    import yaml

    def wrong(allowed: str) -> ConfigError:
        return ConfigError("api_key_file", path, allowed)

    try:
        content = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"it cannot be read: {error}") from None
    except yaml.YAMLError:
        raise wrong("it is no YAML") from None  # whose message would show what is in it
    if not isinstance(content, dict) or not content:
        raise wrong("a mapping is needed, NAME: {key: KEY, requests_per_minute: 60, ...}")
    found = {str(name): _entry(name, entry, wrong) for name, entry in content.items()}
    keys = [key for keys, _ in found.values() for key in keys]
    if len(set(keys)) < len(keys):
        raise wrong("a key stands in it twice")
    return found


def _entry(name: object, entry: Any, wrong: Callable[[str], ConfigError]) -> tuple[tuple[str, ...], Limits]:
    if not isinstance(entry, dict) or not set(entry) <= {"key", *LIMITS}:
        raise wrong(f"{name}: it has key, and may have {', '.join(LIMITS)}")
    given = entry.get("key")
    keys: Iterable[Any] = given if isinstance(given, list) else [given]
    if not given or any(not isinstance(key, str) or not key for key in keys):
        raise wrong(f"{name}: key must be a text or a list of texts; quote it if it looks like a number")
    for limit in LIMITS:
        value = entry.get(limit)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise wrong(f"{name}: {limit} must be a whole number of at least 1")
    return tuple(keys), Limits(**{limit: entry.get(limit) for limit in LIMITS})
