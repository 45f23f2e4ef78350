"""Fair shares: while several tenants wait, each gets as much service as the others, whatever they ask for.

Start-time fair queueing (Goyal, Vin and Cheng 1996) with the service of Sheng et al. 2024 ("Fairness in Serving Large Language Models"): a
token made counts as two tokens read. A sequence's place is the service at which its tenant's sequences before it will end, or where all
tenants are now if that is later, so that nobody saves up while away. What a sequence will take is not known; a guess is charged at arrival,
and when it ends, all that its tenant still has waiting moves by what the guess was off.
"""

from __future__ import annotations

from octavo.core.sequence import Sequence
from octavo.types import Request

MADE = 2.0  # service of a token made; one read counts 1
GUESSED = 64  # tokens that a sequence is expected to make, if it may
LEAST_KEPT = 256  # tenants, below which none is forgotten


def guessed_service(request: Request, index: int) -> float:
    """What a continuation is charged at its arrival. The first one reads the prompt for all."""
    most = request.params.max_tokens
    made = GUESSED if most is None else min(GUESSED, most)
    return MADE * made + (len(request.prompt_token_ids) if index == 0 else 0)


def taken_service(sequence: Sequence) -> float:
    """What it took in the end. Tokens found in the prefix cache cost nothing."""
    if not sequence.admitted:
        return 0.0
    return MADE * sequence.num_output + (sequence.num_prompt - sequence.cached_tokens if sequence.index == 0 else 0)


class Fair:
    """Orders by service, one account a tenant. Requests of no tenant share one."""

    def __init__(self) -> None:
        self._now = 0.0  # service at which the last sequence was admitted
        self._ends: dict[str | None, float] = {}  # where each tenant's charged service ends, if that is later
        self._live = 0
        self._forget_at = LEAST_KEPT

    def order(self, request: Request, number: int, index: int) -> tuple[float, int, int]:
        """Of a new sequence, which is charged to its tenant."""
        start = max(self._now, self._ends.get(request.tenant, 0.0))
        self._ends[request.tenant] = start + guessed_service(request, index)
        self._live += 1
        if len(self._ends) > self._forget_at:
            self._forget()
        return (start, number, index)

    def admitted(self, sequence: Sequence) -> None:
        """For the first time."""
        self._now = max(self._now, sequence.order[0])

    def ended(self, sequence: Sequence, waiting: list[Sequence]) -> bool:
        """Settle the account; whether others' order has changed with it."""
        self._live -= 1
        if not self._live:
            self._now = 0.0
            self._ends.clear()
            return False
        tenant, moved = sequence.request.tenant, False
        off = taken_service(sequence) - guessed_service(sequence.request, sequence.index)
        if tenant in self._ends:
            self._ends[tenant] += off
        if off:
            for other in waiting:
                if other.request.tenant == tenant:
                    start, number, index = other.order
                    other.order = (start + off, number, index)
                    moved = True
        return moved

    def _forget(self) -> None:
        """Tenants that would start at the present anyhow."""
        self._ends = {tenant: end for tenant, end in self._ends.items() if end > self._now}
        self._forget_at = max(LEAST_KEPT, 2 * len(self._ends))
