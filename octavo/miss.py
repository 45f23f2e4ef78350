"""What happens when the cache folder lacks something: usually it is compiled, with OCTAVO_FORCE_AOT_LOAD=1 the start ends."""

from __future__ import annotations

from octavo import env


class CacheMiss(RuntimeError):
    """Something would have to be compiled, and that was forbidden. The text says what, and what works."""


def refuse_if_forced(what: str) -> None:
    """To be called before something is compiled. Raises `CacheMiss` where that is forbidden."""
    if env.FORCE_AOT_LOAD.get():
        raise CacheMiss(
            f"{env.FORCE_AOT_LOAD.name} = 1 forbids compiling, and {what} is not in the cache folder {env.cache_root()}; "
            "fill it by a start without the variable, with the same settings on a machine of this kind"
        )
