"""The choice of experts: scores, groups, the best, their weights, and a count for each expert, in one launch. A token's logits are read
once, into registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.config.experts import Choice
from octavo.ops.triton.dependent import follow

_VALUES = 1024  # logits of one program, about


@triton.jit
def _best_first(values, at, SIZE: tl.constexpr):
    """The largest of each row of values [R, SIZE] and the lowest of its places `at`."""
    top = tl.max(values, axis=1)
    place = tl.min(tl.where(values == top[:, None], at[None, :], SIZE), axis=1)
    return top, place


@triton.jit
def _kept_groups(ranked, GROUPS: tl.constexpr, SIZE: tl.constexpr, BEST: tl.constexpr, KEPT: tl.constexpr, R: tl.constexpr):
    """ranked [R, GROUPS * SIZE] with all but the KEPT best groups at -inf."""
    grouped = tl.reshape(ranked, (R, GROUPS, SIZE))
    at = tl.arange(0, SIZE)
    left = grouped
    worth = tl.zeros((R, GROUPS), tl.float32)
    for _ in tl.static_range(BEST):
        top = tl.max(left, axis=2)
        place = tl.min(tl.where(left == top[:, :, None], at[None, None, :], SIZE), axis=2)
        left = tl.where(at[None, None, :] == place[:, :, None], float("-inf"), left)
        worth += top
    group = tl.arange(0, GROUPS)
    keep = tl.zeros((R, GROUPS), tl.int32)
    for _ in tl.static_range(KEPT):
        _, place = _best_first(worth, group, GROUPS)
        found = group[None, :] == place[:, None]
        keep = tl.where(found, 1, keep)
        worth = tl.where(found, float("-inf"), worth)
    return tl.reshape(tl.where(keep[:, :, None] == 1, grouped, float("-inf")), (R, GROUPS * SIZE))


@triton.jit(do_not_specialize=["num_tokens"])
def _route(
    logits, correction, totals, chosen, weights, num_tokens, num_experts, stride, scale,
    R: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BEST: tl.constexpr, KEPT: tl.constexpr, NUM_GROUPS: tl.constexpr,
    PER_TOKEN: tl.constexpr, K: tl.constexpr, SIGMOID: tl.constexpr, RENORMALIZE: tl.constexpr, CORRECTED: tl.constexpr,
    COUNTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Groups and their experts are padded to powers of two, GROUPS and SIZE."""
    token = tl.program_id(0) * R + tl.arange(0, R)
    at = tl.arange(0, GROUPS * SIZE)
    each = num_experts // NUM_GROUPS
    expert = at // SIZE * each + at % SIZE
    real = (at % SIZE < each) & (at // SIZE < NUM_GROUPS)
    follow(PDL)
    inside = (token < num_tokens)[:, None] & real[None, :]
    value = tl.load(logits + token.to(tl.int64)[:, None] * stride + expert[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.sigmoid(value)
    else:
        grown = tl.exp(value - tl.max(tl.where(inside, value, -1e30), axis=1)[:, None])
        scores = grown / tl.maximum(tl.sum(tl.where(inside, grown, 0.0), axis=1), 1e-30)[:, None]  # tokens beyond the last have no sum
    ranked = scores
    if CORRECTED:
        ranked += tl.load(correction + expert, mask=real, other=0.0)[None, :]
    ranked = tl.where(real[None, :], ranked, float("-inf"))
    if NUM_GROUPS > 1:
        ranked = _kept_groups(ranked, GROUPS, SIZE, BEST, KEPT, R)
    column = tl.arange(0, K)
    experts = tl.zeros((R, K), tl.int32)
    factors = tl.zeros((R, K), tl.float32)
    for j in tl.static_range(PER_TOKEN):
        _, place = _best_first(ranked, at, GROUPS * SIZE)
        found = at[None, :] == place[:, None]
        score = tl.sum(tl.where(found, scores, 0.0), axis=1)
        number = tl.sum(tl.where(found, expert[None, :], 0), axis=1)
        experts = tl.where(column[None, :] == j, number[:, None], experts)
        factors = tl.where(column[None, :] == j, score[:, None], factors)
        ranked = tl.where(found, float("-inf"), ranked)
    if RENORMALIZE:
        factors = factors / (tl.sum(factors, axis=1) + 1e-20)[:, None]
    out = token[:, None] * PER_TOKEN + column[None, :]
    written = (token < num_tokens)[:, None] & (column < PER_TOKEN)[None, :]
    tl.store(chosen + out, experts, mask=written)
    tl.store(weights + out, factors * scale, mask=written)
    if COUNTED:
        tl.atomic_add(totals + experts, tl.full((R, K), 1, tl.int64), mask=written, sem="relaxed")


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, choice: Choice, totals: torch.Tensor | None = None, dependent: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """`dependent`: launch before the kernel ahead has ended (sm_90 and later)."""
    num_tokens, num_experts = logits.shape
    chosen = torch.empty((num_tokens, choice.per_token), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, choice.per_token), dtype=torch.float32, device=logits.device)
    if num_tokens:
        fixed = constants(choice, num_experts, num_tokens, correction is not None, totals is not None, dependent)
        launch = {"launch_pdl": True} if dependent else {}
        _route[(triton.cdiv(num_tokens, fixed["R"]),)](
            logits, correction, totals, chosen, weights, num_tokens, num_experts, logits.stride(0), choice.scale,
            num_warps=1 if fixed["R"] == 1 else 4, **fixed, **launch,
        )  # fmt: skip
    return chosen, weights


def constants(choice: Choice, num_experts: int, num_tokens: int, corrected: bool, counted: bool, dependent: bool) -> dict[str, int]:
    """What the kernel is compiled for."""
    groups = triton.next_power_of_2(choice.num_groups)
    size = triton.next_power_of_2(num_experts // choice.num_groups)
    rows = 1 if num_tokens <= 512 else max(1, _VALUES // (groups * size))
    return {
        "R": rows, "GROUPS": groups, "SIZE": size, "BEST": choice.group_best, "KEPT": choice.groups_per_token,
        "NUM_GROUPS": choice.num_groups, "PER_TOKEN": choice.per_token, "K": triton.next_power_of_2(choice.per_token),
        "SIGMOID": choice.score == "sigmoid", "RENORMALIZE": choice.renormalize, "CORRECTED": corrected, "COUNTED": counted,
        "PDL": dependent,
    }  # fmt: skip
