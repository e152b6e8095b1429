"""What is there all the time is listed and counted once, whatever comes, goes and moves on meanwhile."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from llama_herd.tasks.client import job_cancel, job_list
from llama_herd.tasks.client.job_cancel import JobSelection
from llama_herd.tasks.client.job_list import ENDED, JobChoice, ListedState, list_jobs
from llama_herd.tasks.ledger import job_lists
from llama_herd.tasks.ledger.redis_call import Dialogue, RedisCall, run_call, run_dialogue
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.tasks.herd import JOB, Herd
from tests.tasks.ledger.test_kept import cancel, end_here

pytestmark = pytest.mark.redis

#: Jobs of a list, and of a page of it.
NUM_JOBS, PAGE = 40, 6


Act = Callable[[Herd, str], object]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((job_lists, "MAX_LOOKS"), (job_list, "MAX_PAGE"), (job_cancel, "MAX_PAGE")):
        monkeypatch.setattr(module, name, PAGE)


@dataclass(frozen=True)
class Meddled:
    """A dialogue before each of whose round trips something happens."""

    dialogue: Dialogue[Any]
    meddle: Callable[[], object]

    def __await__(self) -> Generator[Sequence[RedisCall[Any]], list[Any], Any]:
        rounds = self.dialogue.__await__()
        calls = next(rounds)
        while True:
            self.meddle()
            try:
                calls = rounds.send((yield calls))
            except StopIteration as end:
                return end.value


def claim(herd: Herd, job_id: str) -> None:
    herd.claim(job_id)


def renew(herd: Herd, job_id: str) -> None:
    """As a lease that was granted a little later."""
    herd.redis.zincrby("herd:default:leases", 100, job_id)


def purge(herd: Herd, job_id: str) -> None:
    run_call(herd.redis, herd.ledger.purge(job_id))


def submit_and_cancel(herd: Herd, job_id: str) -> None:
    herd.submit(f"new-{job_id}")
    cancel(herd, f"new-{job_id}")


def delay(herd: Herd, job_id: str) -> None:
    herd.submit(f"soon-{job_id}", JOB.model_copy(update={"not_before": 2**49}))


@dataclass
class Life:
    """Jobs in one list. In half of them something happens then, one by one, the first of the list first."""

    herd: Herd
    names: Sequence[str]
    then: Act
    num_changed: int = 0

    def go_on(self) -> None:
        if self.num_changed < NUM_JOBS // 2:
            self.then(self.herd, self.names[self.num_changed])
            self.num_changed += 1

    @property
    def lasting(self) -> set[str]:
        """Those to which nothing has happened, or all where it takes none out of the list."""
        return set(
            self.names if self.then in (renew, delay, submit_and_cancel) else self.names[self.num_changed :]
        )


def a_life(herd: Herd, state: ListedState, then: Act, num_tied: int = 1) -> Life:
    """num_tied: so many came into the list in one millisecond."""
    names = [f"job-{number:02}" for number in range(NUM_JOBS)]
    job = JOB.model_copy(update={"not_before": 2**50}) if state == "delayed" else JOB
    for name in names:
        herd.submit(name, job)
        if state == "running":
            herd.claim(name)
        elif state in ENDED:
            cancel(herd, name)
    if num_tied > 1:
        times = {name: 7 + number // num_tied for number, name in enumerate(names)}
        for key in LISTS:
            herd.redis.zadd(f"herd:default:{key}", times, xx=True)
    return Life(herd, names[::-1] if state in ENDED else names, then)


LISTS = ("pending", "pending:herd.tales", "delayed", "leases", "ended")
LIVES: list[tuple[ListedState, Act]] = [
    ("queued", claim),
    ("queued", cancel),
    ("delayed", delay),
    ("delayed", cancel),
    ("running", renew),
    ("running", end_here),
    ("ended", submit_and_cancel),
    ("ended", purge),
]


@pytest.mark.parametrize("num_tied", [1, 3 * PAGE])
@pytest.mark.parametrize("model", [None, "tales"])
@pytest.mark.parametrize(("state", "then"), LIVES)
def test_what_stays_is_listed_once(
    herd: Herd, state: ListedState, then: Act, model: str | None, num_tied: int
) -> None:
    worker = WorkerStatus(name="w", state="ready", model="tales", device="cpu", slots=4)
    run_call(herd.redis, Reports().report_worker(worker))
    life = a_life(herd, state, then, num_tied)
    choice = JobChoice(model=model, state=state, limit=10 * NUM_JOBS)
    found = run_dialogue(herd.redis, Meddled(list_jobs(herd.ledger, choice), life.go_on))
    listed = Counter(one.job_id for one in found)
    assert life.num_changed > NUM_JOBS // PAGE
    assert set(listed) >= life.lasting
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("num_tied", [1, 3 * PAGE])
@pytest.mark.parametrize("model", [None, "tales"])
@pytest.mark.parametrize(("state", "then"), [one for one in LIVES if one[0] not in ENDED])
def test_what_stays_is_counted(
    herd: Herd, state: ListedState, then: Act, model: str | None, num_tied: int
) -> None:
    life = a_life(herd, state, then, num_tied)
    found = run_dialogue(herd.redis, Meddled(JobSelection(herd.ledger, model, None).count(), life.go_on))
    twice = life.num_changed if then in (claim, delay) else 0
    assert life.num_changed > NUM_JOBS // PAGE
    assert len(life.lasting) <= found <= NUM_JOBS + twice


def test_of_many_all_are_cancelled_and_counted_once(herd: Herd) -> None:
    life = a_life(herd, "queued", claim)
    cancels = Meddled(JobSelection(herd.ledger, "tales", None).cancel(), life.go_on)
    assert run_dialogue(herd.redis, cancels) == NUM_JOBS
    assert life.num_changed > NUM_JOBS // PAGE
    assert all(herd.field(name, "cancel") == "cancelled" for name in life.names)


@pytest.mark.parametrize("state", ["queued", "ended"])
def test_a_list_goes_on_behind_a_job_that_is_gone_however_many_came_with_it(
    herd: Herd, state: ListedState
) -> None:
    life = a_life(herd, state, purge, num_tied=NUM_JOBS)
    lists, cursor, listed = job_lists.JobLists(), None, list[str]()
    for number in range(1, NUM_JOBS):
        next_page = lists.ended_jobs if state == "ended" else partial(lists.jobs, "pending")
        page = run_dialogue(herd.redis, next_page(cursor, most=PAGE))
        listed += [row.job_id for row in page.rows]
        cursor = page.next
        if cursor is None:
            break
        if number % 3 == 0:  # more than a page of the others is still before it
            purge(herd, cursor.job_id)
    assert listed == list(life.names)
