"""The primary is lost for good while jobs run and come."""

import pytest

from tests.chaos.harness.faults.failover import failover
from tests.chaos.harness.herd import Herd

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]


def test_what_was_accepted_is_kept_when_a_replica_takes_over(herd: Herd) -> None:
    with failover(herd):  # says so when a law is broken
        pass
