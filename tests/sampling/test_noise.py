import numpy as np
import torch

from octavo.ops.noise import stream_key, uniform


def by_python(key, position):
    mask = (1 << 64) - 1
    z = (key + position * 0x9E3779B97F4A7C15) & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return ((z ^ (z >> 31)) >> 12) / 2**52


def test_device_arithmetic_equals_unsigned_arithmetic():
    keys = [stream_key(seed, index) for seed in (0, 1, -1, 2**63 - 1, -(2**63)) for index in (0, 1, 16383)]
    positions = [0, 1, 131071, 2**31]
    got = uniform(torch.tensor(keys)[:, None], torch.tensor(positions)[None])
    assert got.tolist() == [[by_python(key, position) for position in positions] for key in keys]


def test_numbers_are_uniform_and_streams_independent():
    keys = torch.tensor([stream_key(seed, index) for seed in range(40) for index in range(5)])
    numbers = uniform(keys[:, None], torch.arange(500)[None]).numpy()
    counts = np.histogram(numbers, 50, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 49 + 6 * np.sqrt(2 * 49)
    assert np.abs(np.corrcoef(numbers) - np.eye(200)).max() < 0.25
    assert np.unique(numbers).size == numbers.size


def test_the_largest_number_stays_under_every_total():
    largest = 1 - 2.0**-52
    totals = np.random.default_rng(0).uniform(1e-30, 1e5, 10000)
    assert (largest * totals < totals).all()
