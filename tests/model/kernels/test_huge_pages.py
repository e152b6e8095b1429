"""Memory that is asked for in huge pages is as good as any other."""

import gc
import mmap

import pytest

from llama_herd.model.kernels.huge_pages import HUGE_PAGE_BYTES, zero_bytes


@pytest.mark.parametrize("count", [0, 1, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 5])
def test_it_is_zero_and_stays_as_it_is_written(count: int) -> None:
    found = zero_bytes(count)
    assert len(found) == count
    assert not found.any()
    view = found.fill_(7)[1:]
    del found
    gc.collect()
    assert bool((view == 7).all())


def test_it_begins_where_a_huge_page_can() -> None:
    assert all(zero_bytes(HUGE_PAGE_BYTES + more).data_ptr() % HUGE_PAGE_BYTES == 0 for more in (0, 1, 4096))


def test_a_system_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not zero_bytes(HUGE_PAGE_BYTES).any()
