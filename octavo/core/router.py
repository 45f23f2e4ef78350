"""Which replica gets a request. Pure like the scheduler: the engines of a data-parallel fleet and the simulator ask this same object."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 1 << 16  # prefixes whose replica is known
AFFINITY = 1  # with which engines are served: a prefix hit is worth one more prompt that waits
SHORTEST_PREFIX = 4  # blocks: less is computed sooner than it is looked for
WAITING_WEIGHT = 4  # a request that waits counts as so many that run: it will cost a prompt, and says that the replica is full


class Load(NamedTuple):
    """What a replica last said of itself."""

    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0  # 0 to 1


@dataclass(slots=True)
class _Replica:
    load: Load = field(default_factory=Load)
    num_sent: int = 0  # requests, ever
    on_way: deque[int] = field(default_factory=deque[int])  # prompt tokens of each that its last word does not know of
    tokens_on_way: int = 0

    def score(self, mean_running: float) -> float:
        """Its work, in requests that run. Full memory counts as many as run on a replica on average: a few long ones are work too."""
        work = (self.load.num_waiting + len(self.on_way)) * WAITING_WEIGHT + self.load.num_running
        return work + self.load.kv_usage * mean_running


class Router:
    """Sends each request to the replica with the least to do; what was sent since a replica's last word counts as waiting there.

    With `affinity`, requests that begin alike go where the longest of their prefixes was computed, as long as that replica has at most
    `affinity` more to do than the least loaded, in requests that wait.
    """

    def __init__(self, num_replicas: int, affinity: int = 0) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas = {num_replicas}: at least 1")
        self._replicas = [_Replica() for _ in range(num_replicas)]
        self._affinity = affinity
        self._homes: OrderedDict[object, int] = OrderedDict()
        self._next = 0  # among equals, in turn

    def num_sent(self, replica: int) -> int:
        """Requests sent to it so far, for its next word."""
        return self._replicas[replica].num_sent

    def report(self, replica: int, load: Load, num_received: int | None = None) -> None:
        """A replica's word about itself, which knows of the first `num_received` requests that were sent to it, or of all."""
        one = self._replicas[replica]
        unknown = 0 if num_received is None else one.num_sent - num_received
        one.load = load
        while len(one.on_way) > unknown:
            one.tokens_on_way -= one.on_way.popleft()

    def choose(self, num_tokens: int, prefixes: Sequence[object] = ()) -> int:
        """The replica for a request of `num_tokens` prompt tokens. `prefixes` names how it begins, shorter ones first."""
        mean_running = sum(one.load.num_running for one in self._replicas) / len(self._replicas)
        scores = [one.score(mean_running) for one in self._replicas]
        chosen = self._least(scores)
        if self._affinity and prefixes:
            home = next((self._homes[name] for name in reversed(prefixes) if name in self._homes), chosen)
            if scores[home] <= scores[chosen] + self._affinity * WAITING_WEIGHT:
                chosen = home
            self._remember(prefixes, chosen)
        one = self._replicas[chosen]
        one.num_sent += 1
        one.on_way.append(num_tokens)
        one.tokens_on_way += num_tokens
        self._next = (chosen + 1) % len(self._replicas)
        return chosen

    def _least(self, scores: Sequence[float]) -> int:
        """Least to do; among equals fewest tokens on the way, then the emptiest KV memory, then in turn."""
        count = len(self._replicas)

        def key(i: int) -> tuple[float, int, float, int]:
            one = self._replicas[i]
            return scores[i], one.tokens_on_way, one.load.kv_usage, (i - self._next) % count

        return min(range(count), key=key)

    def _remember(self, prefixes: Sequence[object], replica: int) -> None:
        for name in prefixes:
            self._homes[name] = replica
            self._homes.move_to_end(name)
        while len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)


def prefix_names(tokens: Sequence[int], block_tokens: int, salt: object = None) -> list[int]:
    """How a prompt begins, for `Router.choose`: hashes of its first 4, 8, 16 ... whole blocks. Two prompts of one name would only share
    a replica; a conversation finds the replica of its last turn by the longest name that both turns have."""
    names: list[int] = []
    length = SHORTEST_PREFIX * block_tokens
    while length <= len(tokens):
        names.append(hash((salt, tuple(tokens[:length]))))
        length *= 2
    return names
