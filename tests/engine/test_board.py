"""Messages from one process to several through shared memory."""

import os

import pytest

from octavo.engine.board import Board


@pytest.fixture
def boards():
    engine = Board(2, ring_bytes=200)
    workers = [Board(2, os.dup(engine.fd), ring_bytes=200) for _ in range(2)]
    yield engine, workers
    for board in (engine, *workers):
        board.close()


def never():
    raise AssertionError("there is room")


def test_messages_arrive_whole_however_the_ring_is_cut(boards):
    engine, workers = boards
    for number in range(50):
        message = b"%d" % number + b"x" * (number * 7 % 90)
        place = engine.write(message, never)
        assert [worker.read(rank, place) for rank, worker in enumerate(workers)] == [message, message]


def test_nothing_unread_is_written_over(boards):
    engine, workers = boards
    first = engine.write(b"a" * 120, never)
    workers[0].read(0, first)
    waited = []

    def wait():
        waited.append(workers[1].read(1, first))

    second = engine.write(b"b" * 120, wait)
    assert waited == [b"a" * 120]
    assert [worker.read(rank, second) for rank, worker in enumerate(workers)] == [b"b" * 120] * 2


def test_what_is_larger_than_the_ring_goes_another_way(boards):
    engine, workers = boards
    assert workers[0].read(0, engine.write(b"c" * 1000, never)) == b"c" * 1000
    after = engine.write(b"d", never)
    assert [worker.read(rank, after) for rank, worker in enumerate(workers)] == [b"d", b"d"]


def test_how_far_each_rank_is(boards):
    engine, workers = boards
    workers[1].note(1, told=7)
    workers[1].note(1, launched=6)
    assert [engine.progress(rank) for rank in range(2)] == [(0, 0), (7, 6)]
