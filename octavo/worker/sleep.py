"""Sleep: a worker gives the memory of its weights, KV cache and graphs back to the device, and takes it again.

Rows, the sampler and step buffers stay: some MB, and what the scheduler says of rows in its next plan must still fit. Graphs and tapes hold
pointers, and nothing brings a tensor back to its old address but the driver's virtual memory, below PyTorch. So they are dropped, and
captured anew by the first steps that want them: some time then, against an allocator of our own for everybody.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from octavo.models.base import CausalLM
from octavo.models.tensors import trim_heap
from octavo.ops.kv_format import scaling
from octavo.worker.runner import Model, Runner

log = logging.getLogger(__name__)
WEIGHTS, KV_CACHE = "weights", "kv_cache"


class Bed:
    """Where one runner sleeps. Its orders do nothing where they are done already, so a wake-up that failed can be given again."""

    def __init__(
        self,
        runner: Runner,
        model: CausalLM,
        load: Callable[[], CausalLM],
        stage: Callable[[CausalLM], Model],
        give_kv: Callable[[CausalLM], None],
        record: Callable[[], None],
    ) -> None:
        """`load` reads the model anew; `stage` makes of it what the runner calls; `give_kv` gives it fresh KV memory; `record` lets the
        runner record steps again."""
        self._device = runner.rows.device
        self.apart = self._device.type != "cpu"  # the host's memory is another than the device's
        self._runner = runner
        self._model: CausalLM | None = model
        self._load, self._stage, self._give_kv, self._record = load, stage, give_kv, record
        self._gone: set[str] = set()  # of WEIGHTS and KV_CACHE
        self._kept: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []  # of weights, on the device and on the host

    def sleep(self, level: int) -> None:
        """Give KV memory and graphs back, and the weights: at level 1 to the host, where a CPU has them anyway; at level 2 for good."""
        before = _used_bytes(self._device)
        self._runner.forget_captured()
        if self._model is not None:
            for layer in self._model.attention_layers:
                layer.kv = layer.kv.new_empty(0)
                if scaling(layer.kv_scales) == 2:  # beside the memory; those of a whole layer came with the weights
                    layer.kv_scales = None
            if level == 2:
                self._forget()
            elif self.apart and WEIGHTS not in self._gone:
                self._put_away(self._model)
        self._gone |= {KV_CACHE, WEIGHTS} if level == 2 or self._kept else {KV_CACHE}
        _give_back(self._device)
        log.info("asleep at level %d: %.2f GiB given back", level, (before - _used_bytes(self._device)) / 2**30)

    def wake(self, parts: Sequence[str]) -> None:
        """Bring back WEIGHTS, KV_CACHE or both. Raises what allocating and loading raise."""
        if WEIGHTS in parts and WEIGHTS in self._gone:
            self._fetch() if self._kept else self._load_anew()
            self._gone.discard(WEIGHTS)
        if KV_CACHE in parts and KV_CACHE in self._gone:
            assert self._model is not None, "weights wake first"
            self._give_kv(self._model)
            self._record()
            self._gone.discard(KV_CACHE)

    def _put_away(self, model: CausalLM) -> None:
        kept = [(storage, _on_host(storage)) for storage in _storages(model)]  # all of them, before the first is emptied
        for storage, _ in kept:
            storage.resize_(0)
        self._kept = kept

    def _forget(self) -> None:
        """Drop the model, and with it the weights, wherever they are."""
        self._kept, self._model = [], None
        del self._runner.model, self._runner.attention

    def _fetch(self) -> None:
        for on_device, on_host in self._kept:
            on_device.resize_(on_host.nbytes())
            on_device.copy_(on_host, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # before the host's copies go
        self._kept = []

    def _load_anew(self) -> None:
        self._model = model = self._load()
        self._runner.model, self._runner.attention = self._stage(model), model.attention_layers[0].backend


def _storages(model: CausalLM) -> Iterator[torch.UntypedStorage]:
    """Of all weights, each once: tied ones share theirs. Whatever looks at a storage sees it again when it is back."""
    yield from {weight.untyped_storage()._cdata: weight.untyped_storage() for weight in model.parameters()}.values()


def _on_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy, in memory that a GPU reads at full speed."""
    kept = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda").untyped_storage()
    kept.copy_(storage)
    return kept


def _give_back(device: torch.device) -> None:
    """What is free goes from PyTorch to the device, or from the heap to the system."""
    gc.unfreeze()  # a start freezes what it made, and some of it is garbage now
    gc.collect()
    torch.cuda.empty_cache() if device.type == "cuda" else trim_heap()


def _used_bytes(device: torch.device) -> int:
    """Of the GPU, by all; of the host's memory, by this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
