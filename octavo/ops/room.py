"""Round sizes, so that what is made once for each size is made for few."""

from __future__ import annotations

EXACT = 1024  # up to so many tokens memory is taken for just those


def power_of_2(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def token_room(num_tokens: int) -> int:
    """How many tokens a tensor has memory for that holds so many and may be looked at as a larger one."""
    return num_tokens if num_tokens <= EXACT else power_of_2(num_tokens)
