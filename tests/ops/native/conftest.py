from collections.abc import Iterator

import pytest
import torch

from octavo import env
from octavo.ops.native.binding import Native
from octavo.ops.native.build import machine_variants
from octavo.ops.native.twins import Twins


def opened(variant: str) -> Iterator[Native]:
    """The library for an instruction set, over three threads, however many cores there are."""
    native = Native(env.cache_root(), 3, variant=variant)
    yield native
    native.close()


@pytest.fixture(scope="session", params=machine_variants())
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    """For each instruction set of this machine."""
    yield from opened(request.param)


@pytest.fixture
def twins(native: Native) -> Twins:
    torch.manual_seed(0)
    return Twins(native)
