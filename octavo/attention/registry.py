"""The attention backends by name, the one tried first in front."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.attention.backend import AttentionBackend, Choice, Needs, choose
from octavo.registry import Registry

BACKENDS = Registry(
    "attention backend",
    {
        "triton": "octavo.attention.triton:TritonAttention",
        "cpu": "octavo.attention.cpu:NativeAttention",
        "reference": "octavo.attention.reference:ReferenceAttention",
    },
)


def backend_for(asked: str, needs: Needs) -> Choice:
    """The backend that was asked for, or for "auto" the first that fits, with the reasons why the others do not.

    Raises ValueError when the asked one cannot serve the needs, KeyError when there is none of that name.
    """
    names = BACKENDS.names() if asked == "auto" else [asked]

    def candidates() -> Iterator[AttentionBackend]:
        for name in names:
            yield BACKENDS.load(name)()

    return choose(candidates(), needs)
