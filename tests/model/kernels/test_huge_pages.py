"""Memory that is asked for in huge pages is as good as any other."""

import gc
import mmap
import weakref
from pathlib import Path
from threading import Event

import pytest
import torch

from llama_herd.model.kernels import huge_pages
from llama_herd.model.kernels.huge_pages import HUGE_PAGE_BYTES, move_into_huge_pages, zero_bytes


@pytest.mark.parametrize("count", [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
def test_it_is_zero_and_stays_as_it_is_written(count: int) -> None:
    found = zero_bytes(count)
    assert len(found) == count
    assert not found.any()
    view = found.fill_(7)[1:]
    del found
    gc.collect(1)  # and not what is older than this test
    assert bool((view == 7).all())


def test_it_begins_where_a_huge_page_can() -> None:
    assert all(zero_bytes(HUGE_PAGE_BYTES + more).data_ptr() % HUGE_PAGE_BYTES == 0 for more in (0, 1, 4096))


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not zero_bytes(HUGE_PAGE_BYTES).any()


def test_moved_memory_holds_what_was_written() -> None:
    found = [zero_bytes(count) for count in (5, HUGE_PAGE_BYTES - 1, 3 * HUGE_PAGE_BYTES + 5)]
    some = torch.arange(251, dtype=torch.uint8)
    written = [some[n:].repeat(len(one) // 200 + 1)[: len(one)] for n, one in enumerate(found)]
    for one, what in zip(found, written, strict=True):
        one.copy_(what)
    move_into_huge_pages(found).join()
    for one, what in zip(found, written, strict=True):
        assert one.equal(what)


@pytest.mark.long
def test_memory_is_filled_in_small_pages_and_then_moved() -> None:
    if not huge_pages._can_move():
        pytest.skip("this system moves no memory into huge pages")
    before = huge_bytes()
    found = zero_bytes(16 * HUGE_PAGE_BYTES).fill_(1)
    filled = huge_bytes()
    move_into_huge_pages([found]).join()
    moved = huge_bytes()
    assert filled - before < HUGE_PAGE_BYTES
    assert moved - filled > 8 * HUGE_PAGE_BYTES


def test_who_moves_memory_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed by that thread while the interpreter ends, it would abort the process."""
    found, may_move = zero_bytes(HUGE_PAGE_BYTES), Event()
    monkeypatch.setattr(huge_pages, "_can_move", may_move.wait)
    mover, kept = move_into_huge_pages([found]), weakref.ref(found)
    del found
    assert kept() is None
    may_move.set()
    mover.join()


def test_a_system_that_moves_nothing_asks_for_huge_pages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_can_move", lambda: False)
    found = zero_bytes(3 * HUGE_PAGE_BYTES).fill_(3)
    move_into_huge_pages([found]).join()
    assert bool((found == 3).all())


def huge_bytes() -> int:
    """Of this process, in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
