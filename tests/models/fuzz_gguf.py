"""GGUF files broken on purpose, and what is done with each: all that serving it would do, up to two tokens by the C kernels.

A file is refused with an error of ours that names what is wrong, or it runs. It never ends the process, and it never takes more memory
than `ROOM_BYTES`. A short run is a test (test_fuzz_gguf.py); a long one:

    python -m tests.models.fuzz_gguf --seconds 3600 [--seed 0]
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from octavo import LLM, SamplingParams
from octavo.config.fields import ConfigError
from octavo.config.hf_config import UnsupportedModel
from octavo.models.tensors import CheckpointError
from octavo.text.tokenizer import TokenizerError
from octavo.types import InvalidRequest
from tests.models.gguf_files import hyperparameters, llama_tensors

REFUSALS = (CheckpointError, UnsupportedModel, TokenizerError, ConfigError, InvalidRequest)
ROOM_BYTES = 2 << 30
EXTREMES = (0, 1, 2, 3, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
FAR = (*EXTREMES, 2**40, 2**62, 2**63, 2**64 - 1)
KINDS = {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_1", "ffn_up": "Q4_1", "ffn_gate": "Q4_1", "ffn_down": "Q8_0"}


@dataclass
class Entry:
    """A tensor as the file lists it."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class Parts:
    """A file in pieces that may be changed one by one. A metadata value is its type's number and its bytes."""

    metadata: list[tuple[bytes, int, bytes]] = field(default_factory=list[tuple[bytes, int, bytes]])
    tensors: list[Entry] = field(default_factory=list[Entry])
    data: bytearray = field(default_factory=bytearray)
    counts: tuple[int, int] | None = None  # where they are not those of the lists

    def __bytes__(self) -> bytes:
        num_tensors, num_values = self.counts or (len(self.tensors), len(self.metadata))
        head = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_values)
        head += b"".join(_text(key) + struct.pack("<I", kind) + value for key, kind, value in self.metadata)
        for one in self.tensors:
            dims = struct.pack(f"<I{len(one.dims)}Q", len(one.dims), *one.dims)
            head += _text(one.name) + dims + struct.pack("<IQ", one.kind, one.offset)
        return head + bytes(-len(head) % 32) + bytes(self.data)


def sound() -> Parts:
    """A llama of two layers whose matrices are packed in several ways, with a tokeniser of 48 letters."""
    parts = Parts()
    letters = [chr(97 + i % 26) * (1 + i // 26) for i in range(48)]
    given: dict[str, Any] = {
        "general.architecture": "llama", "general.alignment": 32, **hyperparameters("llama"), "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": letters, "tokenizer.ggml.merges": ["a a"],
        "tokenizer.ggml.token_type": [1] * 48, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1,
    }  # fmt: skip
    parts.metadata = [(key.encode(), *_value(value)) for key, value in given.items()]
    for name, values in llama_tensors().items():
        kind = next((kind for part, kind in KINDS.items() if part in name), "F32")
        number = gguf.GGMLQuantizationType[kind]
        stored = values if kind == "F32" else gguf.quants.quantize(values, number)
        parts.tensors.append(Entry(name.encode(), list(values.shape[::-1]), int(number), len(parts.data)))
        parts.data += stored.tobytes() + bytes(-stored.nbytes % 32)
    return parts


def break_one(parts: Parts, draw: random.Random) -> None:
    """Change one thing."""
    one, at = draw.choice(parts.tensors), draw.randrange(len(parts.metadata))
    key, kind, value = parts.metadata[at]
    match draw.randrange(16):
        case 0:
            one.offset = draw.choice((*FAR, draw.choice(parts.tensors).offset, 32 * draw.randrange(len(parts.data) // 32), one.offset + 1))
        case 1:
            one.dims[draw.randrange(len(one.dims))] = draw.choice(FAR)
        case 2:
            one.dims = draw.choice(([], one.dims[::-1], [*one.dims, 1], [1] * 5, [*one.dims, 2**32], [32, 2**59]))
        case 3:
            one.kind = draw.choice((*range(32), 2**32 - 1))
        case 4:
            other = draw.choice(parts.tensors).name
            names = (b"", b"\xff\xfe", b"blk.99.attn_q.weight", b"blk.9999999999.attn_q.weight", b"rope_freqs.weight")
            one.name = draw.choice((other, *names))
        case 5:
            parts.tensors.remove(one)
        case 6:  # a number of another size
            parts.metadata[at] = (key, 4, struct.pack("<I", draw.choice(EXTREMES)))
        case 7:
            parts.metadata[at] = (key, 10, struct.pack("<Q", draw.choice(FAR)))
        case 8:
            number = draw.choice((float("nan"), float("inf"), -1.0, 0.0, 1e-45, 3e38))
            parts.metadata[at] = (key, 6, struct.pack("<f", number))
        case 9:
            parts.metadata[at] = (key, *_value(draw.choice(("", "\0", "llama", ["a"], [], [1, 2], [2**31 - 1] * 2, True))))
        case 10:
            parts.metadata[at] = (key, draw.choice((*range(14), 2**32 - 1)), value)
        case 11:
            del parts.metadata[at]
        case 12:
            parts.metadata.append((draw.choice((key, b"", b"\xff", b"llama.rope.scaling.type")), kind, value))
        case 13:
            parts.counts = (draw.choice(FAR), len(parts.metadata)) if draw.random() < 0.5 else (len(parts.tensors), draw.choice(FAR))
        case 14:  # scales that are no numbers, or any other bytes
            where = min(one.offset, len(parts.data) - 2)
            parts.data[where : where + 2] = draw.choice((b"\xff\xff", b"\x00\x7c", draw.randbytes(2)))
        case _:
            del parts.data[draw.randrange(len(parts.data)) :]


def broken(seed: int) -> bytes:
    """A file with one to three things wrong, and now and then some bytes of its head written over."""
    draw, parts = random.Random(seed), sound()
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if parts.tensors and parts.metadata and len(parts.data) > 64:
            break_one(parts, draw)
    whole = bytearray(bytes(parts))
    if draw.random() < 0.2:
        place, width = draw.randrange(4, min(2600, len(whole) - 8)), draw.choice((1, 4, 8))
        whole[place : place + width] = (draw.choice(FAR) % 2 ** (8 * width)).to_bytes(width, "little")
    return bytes(whole)


def attempt(path: Path) -> str:
    """What became of it: the refusal, or that it ran. Anything else is raised."""
    try:
        with room(ROOM_BYTES):
            llm = LLM(str(path), kv_cache_memory_bytes=1 << 20, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=32)
            try:
                llm.get_tokenizer().decode(llm.get_tokenizer().encode("ab"))
                outputs = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, temperature=0.0), use_tqdm=False)
            finally:
                llm.close()
    except REFUSALS as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return f"ran: {outputs[0].outputs[0].finish_reason}"


@contextmanager
def room(num_bytes: int) -> Iterator[None]:
    """No more address space than now and so much: who wants more gets a MemoryError."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(value: Any) -> tuple[int, bytes]:
    """Type number and bytes of a metadata value."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _text(value.encode())
    inner = [_value(one) for one in value]
    return 9, struct.pack("<IQ", inner[0][0] if inner else 8, len(inner)) + b"".join(body for _, body in inner)


def main() -> None:
    parser = argparse.ArgumentParser(description="Break GGUF files and try to serve them.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    end_s, seed, results = time.monotonic() + asked.seconds, asked.seed, dict[str, int]()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end_s:
            path = Path(folder) / f"{seed}.gguf"
            path.write_bytes(broken(seed))
            print(f"seed {seed}", end="\r", flush=True)  # the last one, should the process end
            try:
                result = attempt(path).partition(":")[0]
            except BaseException:
                print(f"seed {seed} got through")
                raise
            results[result] = results.get(result, 0) + 1
            path.unlink()
            seed += 1
    print(f"seeds {asked.seed} to {seed - 1}: {results}")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
