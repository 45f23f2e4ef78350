"""One continuation of a request, as the brain sees it: counters that chase each other."""

from __future__ import annotations

from octavo.core.kv.hashing import Prefix
from octavo.core.plan import Slice
from octavo.types import FinishReason, Request

MASK = (1 << 64) - 1


class Sequence:
    """`length` tokens, of which `planned` have been given to a step; `want` says how many more could be.

    While steps are in flight the counters are upper bounds: `pending`, `drafts` and `planned` count as if every draft were accepted, and a
    commit lowers them by what was refused. `planned - unsure` is what the device will at least have computed.
    """

    __slots__ = (  # noqa: RUF023  in the order of __init__
        "request", "request_id", "index", "number", "order", "lead", "seed",
        "tokens", "num_prompt", "bound", "ending", "masked",
        "pending", "drafts", "unsure", "planned", "fed", "spread",
        "row", "generation", "steady", "room",
        "blocks", "dropped", "capacity", "chain", "registered", "caching", "private",
        "finish_reason", "reported", "admitted", "seen_s", "queued_s", "cached_tokens", "miss", "num_preemptions", "scored", "prompt_sent",
    )  # fmt: skip

    def __init__(
        self, request: Request, index: int, number: int, order: tuple[float, int, int], max_model_len: int, num_groups: int
    ) -> None:
        params = request.params
        self.request = request
        self.request_id = request.id
        self.index = index
        self.number = number  # arrival number of the request
        self.order = order  # place among others: smaller goes first, never equal
        self.lead: Sequence | None = None  # continuation 0, whose prompt blocks the others share
        self.seed = 0

        self.tokens: list[int] = list(request.prompt_token_ids)  # known on the host: prompt, then output
        self.num_prompt = len(self.tokens)
        max_tokens = max_model_len if params.max_tokens is None else params.max_tokens
        self.bound = min(self.num_prompt + max_tokens, max_model_len) - 1  # most tokens whose KV is ever needed
        self.ending = params.ending_token_ids
        self.masked = params.structured_outputs is not None  # sampling waits for a mask

        self.pending = 0  # sampled by steps in flight, not read yet
        self.drafts = 0  # waiting in the device row, to be verified by the next step
        self.unsure = 0  # drafts that steps in flight verify
        self.planned = 0
        self.fed = 0  # tokens the host knew when the row was taken: positions before it are fed by value
        self.spread = False  # the whole prompt has been planned once, so other continuations may share it

        self.row = -1
        self.generation = -1  # of the row; a slice of another generation is ignored
        self.steady: Slice | None = None  # its slice in every step in which it decodes one token
        self.room = 0  # `planned` may grow to this with no further check: no new block, not past the bound

        self.blocks: list[list[int]] = [[] for _ in range(num_groups)]  # a block table per group
        self.dropped = [0] * num_groups  # leading entries given back already
        self.capacity = 0  # tokens that every table covers
        self.chain: list[Prefix] = []
        self.registered = 0  # units of the chain whose blocks can be found by others
        self.caching = False
        self.private = False  # shares blocks with its siblings only

        self.finish_reason: FinishReason | None = None
        self.reported = False
        self.admitted = False  # once at least
        self.seen_s = 0.0
        self.queued_s = 0.0
        self.cached_tokens = 0
        self.miss: str | None = None
        self.num_preemptions = 0
        self.scored = 0  # prompt positions whose log-probabilities came since the row was taken ...
        self.prompt_sent = 0  # ... and ever

    @property
    def length(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def want(self) -> int:
        """Tokens that could be planned now, were there no limits."""
        return len(self.tokens) + self.pending + self.drafts - self.planned

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def __repr__(self) -> str:
        state = self.finish_reason.value if self.finish_reason else f"row {self.row}"
        return f"<{self.request_id}/{self.index} {state}: {len(self.tokens)}+{self.pending}+{self.drafts} tokens, {self.planned} planned>"


def draw(seed: int, number: int) -> int:
    """A request's own seed from the engine's and its arrival number (the finaliser of SplitMix64; Steele, Lea and Flood 2014)."""
    x = (seed + number * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)) >> 1
