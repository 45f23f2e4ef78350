from collections.abc import Iterator

import pytest
import torch

from octavo import env
from octavo.ops.native.binding import Native
from octavo.ops.native.build import machine_variants
from octavo.ops.native.twins import Twins


@pytest.fixture(scope="session", params=machine_variants())
def native(request: pytest.FixtureRequest) -> Iterator[Native]:
    """Each instruction set of this machine, over three threads, however many cores there are."""
    native = Native(env.cache_root(), 3, variant=request.param)
    yield native
    native.close()


@pytest.fixture
def twins(native: Native) -> Twins:
    torch.manual_seed(0)
    return Twins(native)
