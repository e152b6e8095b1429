"""Jobs of tests of the ledger."""

import pytest

from tests.tasks.herd import Herd, started, token


@pytest.fixture
def running(herd: Herd) -> Herd:
    """Job `a`, owned by worker one, with a start and two tokens recorded."""
    herd.submit("a")
    herd.claim("a", "one")
    assert herd.kinds("one", started("a"), token("a", 2, 0, 5, 6)) == ["ok", "ok"]
    return herd
