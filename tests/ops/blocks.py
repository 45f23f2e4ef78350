"""Blocks of GGUF's quantised kinds, for tests."""

import numpy as np

from octavo.models.gguf_reader import BLOCK_TYPES

BLOCK_BYTES = {block.name: block.num_bytes for block in BLOCK_TYPES.values()}
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}


def random_blocks(kind: str, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Blocks of any bytes, but for the float16 numbers in them, which are kept finite."""
    blocks = np.random.default_rng(seed).integers(0, 256, (num_blocks, BLOCK_BYTES[kind]), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        blocks[:, at + 1] &= 0xBF  # without the top bit of the exponent a number is below 2
    return blocks
