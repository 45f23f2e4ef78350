"""Histograms: what is counted where, and what Prometheus is told of finer ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.histogram import Histogram, one_two_five


def test_histogram() -> None:
    histogram = Histogram([1, 2, 5])
    for number in (0.5, 1, 1.5, 5, 6):
        histogram.observe(number)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 3), ("5.0", 4), ("+Inf", 5)]
    assert (histogram.count, histogram.total) == (5, 14)


@given(st.lists(st.one_of(st.floats(0, 100), st.sampled_from([0.01, 0.1, 0.25, 1.0, 5.0]))), st.integers(2, 9))
def test_a_finer_one_tells_prometheus_the_same(values: list[float], fine: int) -> None:
    bounds = (0.01, 0.1, 0.25, 1.0, 5.0)
    coarse, finer = Histogram(bounds), Histogram(bounds, fine)
    for value in values:
        coarse.observe(value)
        finer.observe(value)
    assert finer.buckets() == coarse.buckets()
    assert finer.count == len(values)


def test_finer_bounds_divide_each_bucket_by_equal_ratios() -> None:
    assert Histogram([1, 16], 4).bounds == pytest.approx((0.125, 0.25, 0.5, 1, 2, 4, 8, 16))


def test_one_two_five() -> None:
    assert one_two_five(128) == [1, 2, 5, 10, 20, 50, 100]
    assert one_two_five(1) == [1]
