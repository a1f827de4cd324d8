"""Batches made ready in another thread: the same ones, in the same order, and errors and ends arrive."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import List

import pytest

from ipu_model.ahead import ahead


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_the_order_is_that_of_the_items(depth: int) -> None:
    assert list(ahead(lambda x: x * x, range(5), depth)) == [0, 1, 4, 9, 16]
    assert list(ahead(lambda x: x, [], depth)) == []


def test_no_more_than_asked_for_are_made_before_their_turn() -> None:
    begun: List[int] = []
    third = threading.Event()

    def make(item: int) -> int:
        begun.append(item)
        if item == 2:
            third.set()
        return item

    with closing(ahead(make, range(10), 2)) as made:
        assert next(made) == 0
        assert third.wait(30)  # made without being asked for
        assert next(made) == 1
    assert begun in ([0, 1, 2], [0, 1, 2, 3])  # 3 was allowed, as 1 was taken; nothing after it


def test_all_are_made_in_one_other_thread() -> None:
    threads = set(ahead(lambda item: threading.current_thread(), range(4), 2))
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert set(ahead(lambda item: threading.current_thread(), range(4), 0)) == {threading.current_thread()}


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_where_its_result_would_have(depth: int) -> None:
    def make(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        return item

    taken: List[int] = []
    with closing(ahead(make, range(5), depth)) as made, pytest.raises(KeyError):
        taken.extend(made)
    assert taken == [0, 1]


def test_closing_ends_the_thread() -> None:
    with closing(ahead(lambda item: item, range(1000), 2)) as made:
        next(made)
        assert [t for t in threading.enumerate() if t.name.startswith("ahead")]
    assert not [t for t in threading.enumerate() if t.name.startswith("ahead")]
