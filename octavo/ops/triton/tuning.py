"""What `-O3` adds: cuts of products that no table has are tried on this GPU when the first product of their shape comes, and kept.

That is at the start, where steps of all captured sizes run once. Each candidate is compiled, then timed with cold caches; the fastest is
taken, which may be what is done without tuning. What was found lies in a file of the cache folder, one for each card and Triton.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
import triton
from triton.errors import TritonError

from octavo import env
from octavo.ops.table import Cut, Key, OneRow, Skinny, Wide

log = logging.getLogger(__name__)

KINDS = {kind.__name__: kind for kind in (OneRow, Skinny, Wide)}
NUM_TIMINGS = 7
FLUSHED_BYTES = 256 << 20  # several times the last cache of any card
NUM_FLUSHES = 4  # which keep the device busy while the host launches what is timed
MOST_REGISTERS = 180  # a thread, for x and the weights of a row

ONE_ROW = (OneRow(1), OneRow(1, 4), OneRow(2), OneRow(2, 2), OneRow(4), OneRow(8))
FEW_ROWS = (
    Skinny(16, 16, 512, warps=2), Skinny(16, 32, 128, stages=4, swap=True), Skinny(16, 64, 128, stages=4, swap=True),
    Skinny(16, 64, 256, swap=True), Skinny(16, 64, 128, split=4, stages=4, swap=True),
)  # fmt: skip
MORE_ROWS = (Skinny(64, 64, 64, stages=6), Skinny(64, 32, 128, stages=4), Skinny(64, 128, 64, stages=4))
MANY_ROWS = (Wide(128, 64, 64), Wide(64, 64, 128), Wide(64, 32, 128), Wide(64, 16, 256))


def candidates(key: Key) -> Iterator[Cut | None]:
    """What may be tried for a form, rows and a weight; None is the library's product."""
    form, rows, _, k = key
    if rows == 1:
        yield from (cut for cut in ONE_ROW if _held(cut, form, k) <= MOST_REGISTERS)
        return
    whole = "norm" in form or "gate" in form  # sums that may not be shared
    some = FEW_ROWS if rows <= 16 else MORE_ROWS if rows <= 64 else () if "norm" in form else MANY_ROWS
    yield from (cut for cut in some if cut.block_k <= k and not (whole and isinstance(cut, Skinny) and cut.split > 1))
    if rows > 16:
        yield None


def _held(cut: OneRow, form: str, k: int) -> float:
    """Registers of a thread that hold x in float32, and a group's weights of two bytes."""
    values = 2 ** (k - 1).bit_length() / (32 * cut.warps)
    return values * (1 + cut.block_n * (2 if "gate" in form else 1) / 2)


class Tuner:
    """Cuts by key, and how more of them are found. `seconds` times one launch; while `capturing` nothing can be tried."""

    def __init__(
        self, file: Path, seconds: Callable[[Callable[[], object]], float], capturing: Callable[[], bool] = lambda: False
    ) -> None:
        self._file, self._seconds, self._capturing = file, seconds, capturing
        self._found = {key: cut for key, cut in _read(file)}

    @staticmethod
    def here(device_name: str) -> Tuner:
        """For the current GPU."""
        file = env.cache_root() / "tuned" / f"{device_name}, triton {triton.__version__}.json"
        return Tuner(file, cold_seconds, torch.cuda.is_current_stream_capturing)

    def cut(self, key: Key, untuned: Cut | None, run: Callable[[Cut | None], object]) -> Cut | None:
        """The best cut; `run` launches the product by one, again and again."""
        if key not in self._found:
            if self._capturing():
                return untuned
            self._found[key] = self._best(key, untuned, run)
            self._keep()
        return self._found[key]

    def _best(self, key: Key, untuned: Cut | None, run: Callable[[Cut | None], object]) -> Cut | None:
        times = {cut: self._time(cut, run) for cut in dict.fromkeys((untuned, *candidates(key)))}
        best = min(times, key=lambda cut: times[cut])
        log.info("tuned %s: %s takes %.1f us, %s %.1f", key, best, 1e6 * times[best], untuned, 1e6 * times[untuned])
        return best

    def _time(self, cut: Cut | None, run: Callable[[Cut | None], object]) -> float:
        try:
            return self._seconds(lambda: run(cut))
        except TritonError as error:  # more registers or shared memory than this card has
            log.debug("%s does not run: %s", cut, error)
            return math.inf

    def _keep(self) -> None:
        rows = [[key, cut and [type(cut).__name__, asdict(cut)]] for key, cut in self._found.items()]
        beside = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(rows), encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:  # a folder of an image may be read-only
            log.debug("what was tuned is not kept: %s", error)


def _read(file: Path) -> Iterator[tuple[Key, Cut | None]]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    for (form, num_rows, n, k), kept in rows:
        yield (form, num_rows, n, k), kept and KINDS[kept[0]](**kept[1])


def cold_seconds(launch: Callable[[], object]) -> float:
    """Of one launch on the device, whose caches hold something else before it: the median of a few."""
    launch()  # compiled, and whatever it tunes inside
    flush = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
    spans = []
    for _ in range(NUM_TIMINGS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(NUM_FLUSHES):
            flush.zero_()
        begin.record()
        launch()
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    del flush
    torch.cuda.empty_cache()  # steps have their own use for that memory
    return median(begin.elapsed_time(end) for begin, end in spans) / 1000
