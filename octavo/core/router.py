"""Which replica gets a request. Pure like the scheduler: the engines of a data-parallel fleet and the simulator ask this same object."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 1 << 16  # prefixes whose replica is known
WAITING_WEIGHT = 4  # a request that waits counts as so many that run: it will cost a prompt, and says that the replica is full


class Load(NamedTuple):
    """What a replica last said of itself."""

    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0  # 0 to 1


@dataclass(slots=True)
class _Replica:
    load: Load = field(default_factory=Load)
    sent: int = 0  # requests since then
    sent_tokens: int = 0

    @property
    def score(self) -> int:
        return (self.load.num_waiting + self.sent) * WAITING_WEIGHT + self.load.num_running


class Router:
    """Sends each request to the replica with the least to do; what was sent since a replica's last word counts as waiting there.

    With `affinity`, requests that begin alike go where the prefix was computed, as long as that replica has at most `affinity` more to do
    than the least loaded, in requests that wait.
    """

    def __init__(self, num_replicas: int, affinity: int = 0) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas = {num_replicas}: at least 1")
        self._replicas = [_Replica() for _ in range(num_replicas)]
        self._affinity = affinity
        self._homes: OrderedDict[object, int] = OrderedDict()
        self._next = 0  # among equals, in turn

    def report(self, replica: int, load: Load) -> None:
        """A replica's word about itself, which knows of everything sent to it so far."""
        one = self._replicas[replica]
        one.load, one.sent, one.sent_tokens = load, 0, 0

    def choose(self, num_tokens: int, prefix: object = None) -> int:
        """The replica for a request of `num_tokens` prompt tokens. `prefix` names how it begins; None for nothing that others share."""
        chosen = self._least()
        if self._affinity and prefix is not None:
            home = self._homes.get(prefix, chosen)
            if self._replicas[home].score <= self._replicas[chosen].score + self._affinity * WAITING_WEIGHT:
                chosen = home
            self._homes[prefix] = chosen
            self._homes.move_to_end(prefix)
            if len(self._homes) > REMEMBERED:
                self._homes.popitem(last=False)
        one = self._replicas[chosen]
        one.sent += 1
        one.sent_tokens += num_tokens
        self._next = (chosen + 1) % len(self._replicas)
        return chosen

    def _least(self) -> int:
        """Least to do; among equals fewest tokens on the way, then the emptiest KV memory, then in turn."""
        count = len(self._replicas)

        def key(i: int) -> tuple[int, int, float, int]:
            one = self._replicas[i]
            return one.score, one.sent_tokens, one.load.kv_usage, (i - self._next) % count

        return min(range(count), key=key)


def prefix_name(tokens: Sequence[int], block_tokens: int, num_blocks: int = 4) -> tuple[int, ...] | None:
    """How a prompt begins, for `Router.choose`: its first whole blocks, at most `num_blocks` of them; None if it has not one."""
    whole = min(len(tokens) // block_tokens, num_blocks)
    return tuple(tokens[: whole * block_tokens]) if whole else None
