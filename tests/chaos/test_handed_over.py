"""A worker that has left must have released its jobs, and neither counted a death nor forgotten one."""

from dataclasses import replace

import pytest

from llama_herd.tasks.ledger.answers import JobRecord
from tests.chaos.harness.faults.leaving import check_release
from tests.chaos.harness.verdict import BrokenLaw

HELD = JobRecord("running", "herd.tales", "w", "w", 2, 9, 40, 1, 2, None, 0, 0, None)
LEFT = replace(HELD, state="queued", owner=None)


@pytest.mark.parametrize("left", [LEFT, replace(LEFT, deaths=0), replace(LEFT, state="running", owner="v")])
def test_a_job_that_waits_again_with_its_count_of_deaths_was_handed_over(left: JobRecord) -> None:
    check_release("j", HELD, left)


@pytest.mark.parametrize(
    ("held", "left", "broken"),
    [
        (HELD, HELD, "left to the end of its lease"),
        (HELD, replace(LEFT, deaths=2), "2 deaths, not 1"),
        (replace(HELD, deaths=2), LEFT, "1 deaths, not 2"),
    ],
)
def test_a_job_that_is_left_or_counted_was_not(held: JobRecord, left: JobRecord, broken: str) -> None:
    with pytest.raises(BrokenLaw, match=broken):
        check_release("j", held, left)
