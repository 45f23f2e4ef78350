"""The random choice of a token (octavo/ops/draw.py) without sorting: a program a row, which goes through the row's logits again and again.

What a truncation keeps is all weights from a threshold on. Weights are numbers in [0, 1], whose bits are in their order, so the threshold
is searched bit by bit: two bits a pass, of three candidates the mass or the count of what lies above them. Nothing as wide as the
vocabulary is written. A row of 152,000 logits in bfloat16 has 300 kB and stays in the L2 cache.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (how Triton types its own language does not fit its use)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo.ops.draw import Settings
from octavo.ops.triton.best import best

_BLOCK, _WARPS = 8192, 16


@triton.jit
def _weights(logits, start, vocab, peak, temperature, BLOCK: tl.constexpr):
    """[BLOCK] float32 of the row's logits from `start` on."""
    at = start + tl.arange(0, BLOCK)
    value = tl.load(logits + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    return tl.exp((value - peak) / temperature)


@triton.jit
def _mass(logits, vocab, peak, temperature, least, BLOCK: tl.constexpr):
    """Of all weights from `least` on, float64, block by block."""
    mass = 0.0 + tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        weight = _weights(logits, start, vocab, peak, temperature, BLOCK)
        mass += tl.sum(tl.where(weight >= least, weight, 0.0).to(tl.float64), axis=0)
    return mass


@triton.jit
def _threshold(logits, vocab, peak, temperature, least, target, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The largest weight for which those from it on, and from `least` on, are `target` together: their number, or their mass."""
    low = tl.zeros((), tl.int32)
    for turn in range(15):
        step = tl.full((), 1, tl.int32) << (28 - 2 * turn)
        kind = tl.int32 if COUNTED else tl.float32
        one, two, three = tl.zeros((BLOCK,), kind), tl.zeros((BLOCK,), kind), tl.zeros((BLOCK,), kind)
        for start in range(0, vocab, BLOCK):
            weight = _weights(logits, start, vocab, peak, temperature, BLOCK)
            bits = weight.to(tl.int32, bitcast=True)
            value = tl.where(start + tl.arange(0, BLOCK) < vocab, 1, 0) if COUNTED else tl.where(weight >= least, weight, 0.0)
            one += tl.where(bits >= low + step, value, 0)
            two += tl.where(bits >= low + 2 * step, value, 0)
            three += tl.where(bits >= low + 3 * step, value, 0)
        above = (tl.sum(one.to(tl.float64), axis=0) >= target).to(tl.int32)
        above += (tl.sum(two.to(tl.float64), axis=0) >= target).to(tl.int32)
        above += (tl.sum(three.to(tl.float64), axis=0) >= target).to(tl.int32)
        low += above * step
    return low.to(tl.float32, bitcast=True)


@triton.jit
def _choice(logits, vocab, peak, temperature, least, number, BLOCK: tl.constexpr):
    """The token at `number` of the kept mass, in the vocabulary's order."""
    place = number * _mass(logits, vocab, peak, temperature, least, BLOCK)
    before, passed = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    block = tl.zeros((), tl.int32)
    for start in range(0, vocab, BLOCK):
        weight = _weights(logits, start, vocab, peak, temperature, BLOCK)
        after = passed + tl.sum(tl.where(weight >= least, weight, 0.0).to(tl.float64), axis=0)
        here = (passed <= place) & (after > place)
        before, block = tl.where(here, passed, before), tl.where(here, start, block)
        passed = after
    weight = _weights(logits, block, vocab, peak, temperature, BLOCK)
    sums = before + tl.cumsum(tl.where(weight >= least, weight, 0.0).to(tl.float64), axis=0)
    first = tl.min(tl.where(sums > place, tl.arange(0, BLOCK), BLOCK), axis=0)
    return tl.minimum(block + first, vocab - 1)


@triton.jit
def _uniform(key, position):
    """`octavo.ops.noise.uniform`."""
    z = key.to(tl.uint64) + position.to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 12).to(tl.float64) * 2.220446049250313e-16


@triton.jit
def _draw(
    logits, peaks, tokens, numbers, stream, positions, at, rows, temperatures, top_k, top_p, min_p, vocab, stride,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, BY_ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + number) if BY_ROW else number
    temperature = tl.load(temperatures + row)
    if BY_ROW:
        if temperature <= 0.0:
            return
        place = _uniform(tl.load(stream + row), tl.load(positions + tl.load(at + number)) + 1)
    else:
        temperature = tl.where(temperature > 0.0, temperature, 1.0)
        place = tl.load(numbers + number)
    logits += number * stride
    peak = tl.load(peaks + number)
    least = tl.load(min_p + row) if MIN_P else tl.zeros((), tl.float32)
    if TOP_K:
        count = tl.minimum(tl.load(top_k + row), vocab)
        if count > 0:
            least = tl.maximum(least, _threshold(logits, vocab, peak, temperature, 0.0, count.to(tl.float64), True, BLOCK))
    if TOP_P:
        share = tl.load(top_p + row)
        if share < 1.0:
            target = share.to(tl.float64) * _mass(logits, vocab, peak, temperature, least, BLOCK)
            least = tl.maximum(least, _threshold(logits, vocab, peak, temperature, least, target, False, BLOCK))
    tl.store(tokens + number, _choice(logits, vocab, peak, temperature, least, place, BLOCK).to(tl.int64))


def draw_rows(
    logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, at: torch.Tensor, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `octavo.ops.draw.draw_rows`."""
    tokens, peaks = best(logits)
    _launch(logits, peaks, tokens, (peaks, settings.stream, positions, at, rows), settings, by_row=True)
    return tokens, peaks


def draw(
    logits: torch.Tensor,
    peaks: torch.Tensor,
    numbers: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> torch.Tensor:
    """As `octavo.ops.draw.draw`."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    settings = Settings(temperature, tokens, top_k, top_p, min_p)  # a number is given, so nothing reads the stream
    _launch(logits, peaks, tokens, (numbers, tokens, tokens, tokens, tokens), settings, by_row=False)
    return tokens


def _launch(
    logits: torch.Tensor, peaks: torch.Tensor, tokens: torch.Tensor, places: tuple[torch.Tensor, ...], settings: Settings, by_row: bool
) -> None:
    """`places` say where in a row's mass its token is: numbers; or streams, positions, where those are, and rows."""
    num_rows, vocab = logits.shape
    if not num_rows:
        return
    truncation = (settings.top_k, settings.top_p, settings.min_p)
    columns = [peaks if column is None else column for column in truncation]  # what is not used is not read
    top_k, top_p, min_p = (column is not None for column in truncation)
    _draw[(num_rows,)](
        logits, peaks, tokens, *places, settings.temperature, *columns, vocab, logits.stride(0),
        TOP_K=top_k, TOP_P=top_p, MIN_P=min_p, BY_ROW=by_row, BLOCK=min(_BLOCK, triton.next_power_of_2(vocab)), num_warps=_WARPS,
    )  # fmt: skip
