"""Whether a request can run here at all. What passes is certain to finish, whatever else runs."""

from __future__ import annotations

from octavo.config.resolved import Resolved
from octavo.core.kv.layout import KVLayout
from octavo.types import InvalidRequest, Request


def check(request: Request, settings: Resolved, layout: KVLayout) -> None:
    """Raise InvalidRequest, with the numbers, for a prompt that is empty or too long, or a length whose KV exceeds the whole pool."""
    num_prompt = len(request.prompt_token_ids)
    limit = settings.max_model_len
    if num_prompt == 0:
        raise InvalidRequest("prompt", "", "at least one token is needed")
    if num_prompt >= limit:
        raise InvalidRequest("prompt", f"{num_prompt} tokens", f"at most max_model_len - 1 = {limit - 1} tokens, so that one can be made")
    needed = layout.peak_blocks(kept_tokens(request, settings), settings.max_num_batched_tokens)
    if needed > layout.num_blocks:
        asked = f"{num_prompt} prompt tokens + max_tokens {request.params.max_tokens}"
        raise InvalidRequest("max_tokens", asked, f"their KV needs {needed} blocks and there are {layout.num_blocks}")


def kept_tokens(request: Request, settings: Resolved) -> int:
    """Most tokens whose KV is ever needed: the last one sampled is never fed."""
    num_prompt = len(request.prompt_token_ids)
    max_tokens = request.params.max_tokens
    longest = settings.max_model_len if max_tokens is None else min(num_prompt + max_tokens, settings.max_model_len)
    return longest - 1
