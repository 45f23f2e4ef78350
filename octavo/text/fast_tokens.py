"""fastokens, where asked for: the ids of the `tokenizers` library, many times as fast on long texts. The one file that knows it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from tokenizers import Tokenizer as Core

log = logging.getLogger(__name__)
Encode = Callable[[str, bool], list[int]]  # from a text, and whether special tokens go around it
OLDEST = (0, 2)
INSTALL = "OCTAVO_USE_FASTOKENS=1 needs the package fastokens, 0.2.0 or later: pip install octavo[fastokens], or pip install fastokens"
PROBES = ("", " The 1,234 engines' café\n\n\tcosts 4 €  <s>[INST]<|im_start|>", "日本語 🙂👩‍👩‍👧 naïve\r\n don't")


def fast_encode(core: Core) -> Encode | None:
    """A quicker way to encode; None, with a line in the log, for a tokeniser that fastokens cannot read or reads otherwise.

    Raises `ImportError` where there is no fastokens.
    """
    try:
        found = version("fastokens")
        from fastokens import Tokenizer as Fast
    except (PackageNotFoundError, ImportError):
        raise ImportError(INSTALL) from None
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        raise ImportError(f"{INSTALL}; this is {found}")
    try:
        fast = Fast.from_json_str(core.to_str())
        asked = [(text, ends) for text in PROBES for ends in (True, False)]
        wrong = [text for text, ends in asked if fast.encode(text, ends).ids != core.encode(text, add_special_tokens=ends).ids]
    except Exception as error:  # the library raises what it likes
        log.warning("fastokens is not used: it cannot read this model's tokeniser: %s", error)
        return None
    if wrong:
        log.warning("fastokens is not used: it reads this model's tokeniser otherwise: %r has other tokens", wrong[0])
        return None
    log.info("texts are encoded by fastokens %s", found)
    return lambda text, add_special_tokens: fast.encode(text, add_special_tokens).ids
