"""Several processes count in rows of their own, and each reads the sums."""

import pytest

from octavo.histogram import Histogram
from octavo.ledger import CELL_BYTES, ROW_BYTES, Counts, Ledger
from octavo.serve.accounts import Bucket


def both() -> tuple[Ledger, Ledger]:
    """Two views of one memory, as two processes have them."""
    first = Ledger(2)
    return first, Ledger(2, 1, first.fd)


def test_each_reads_what_both_have_counted() -> None:
    ours, theirs = (Counts(("a", "b"), ledger) for ledger in both())
    ours.add("a")
    theirs.add("a", 4)
    theirs.add("b", -1)
    for counts in (ours, theirs):
        assert dict(counts.items()) == {"a": 5, "b": -1}
        assert counts["a"] == 5
        assert counts.total() == 4


def test_histograms_and_what_comes_after_them_do_not_overlap() -> None:
    pairs = [(Histogram((1, 2), ledger=ledger), Counts(("after",), ledger)) for ledger in both()]
    for value, (histogram, counts) in zip((0.5, 7.25), pairs):
        histogram.observe(value)
        counts.add("after")
    for histogram, counts in pairs:
        assert histogram.counts == [1, 0, 1]
        assert histogram.total == 7.75
        assert counts["after"] == 2


def test_what_one_process_takes_of_a_minute_the_other_has_not() -> None:
    ours, theirs = (Bucket(60, 0.0, ledger) for ledger in both())
    assert ours.wait_s(0, 0.0) == 0
    assert theirs.wait_s(60, 0.0) == pytest.approx(1.0)
    assert ours.wait_s(60, 0.5) == pytest.approx(0.5)
    assert theirs.wait_s(60, 600.0, needed=60) == 0, "a long time without a look is a full minute's worth and no more"
    assert ours.wait_s(120, 600.0) == pytest.approx(1.0)


def test_more_numbers_than_a_row_holds() -> None:
    with pytest.raises(AssertionError, match="there is room for"):
        Ledger().whole(ROW_BYTES // CELL_BYTES + 1)
