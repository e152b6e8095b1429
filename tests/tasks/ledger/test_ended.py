"""The jobs that ended last are listed by the script that ends them, with all that is asked of a list."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import pytest

from llama_herd.errors import BadInput, InvalidJob
from llama_herd.tasks import Client
from llama_herd.tasks.client.job_list import ENDED, EndedState
from llama_herd.tasks.ledger.held_jobs import FinalState
from llama_herd.tasks.ledger.job_lists import JobLists
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.protocol.events import Failure
from tests.tasks.herd import JOB, Herd, commands
from tests.tasks.ledger.test_kept import ENDS, cancel, end_by_sweep, end_here, fail, poison

pytestmark = pytest.mark.redis

LISTS = ("herd:default:ended", "herd:default:failed")


@pytest.fixture
def client(herd: Herd, redis_url: str) -> Iterator[Client]:
    with Client(redis_url, model="tales") as client:
        yield client


def ids(client: Client, state: EndedState = "ended", **choice: object) -> list[str]:
    return [one.job_id for one in client.jobs(state=state, **choice)]  # type: ignore[arg-type]


def test_each_end_is_listed_and_each_failure_once_more(client: Client, herd: Herd) -> None:
    for number, ends in enumerate(ENDS):
        herd.submit(str(number))
        ends(herd, str(number))
    assert set(ENDS) == {end_here, fail, cancel, poison, end_by_sweep}
    assert ids(client) == ["4", "3", "2", "1", "0"]
    assert (ids(client, "done"), ids(client, "cancelled")) == (["0"], ["2"])
    assert ids(client, "failed") == ["4", "3", "1"]
    found = {one.job_id: one for one in client.jobs(state="ended")}
    assert {one.error and one.error.code for one in found.values()} == {None, "model_error", "poisoned"}
    assert found["4"].finish_reason == "deadline"
    assert found["1"].error == Failure(code="model_error", message="the device was lost", retriable=True)
    for one in found.values():
        alone = replace(client.job(one.job_id), now_ms=one.now_ms, cancel=None)
        assert one == alone
        assert one.submitted_ms <= (one.ended_ms or 0) <= one.now_ms


def test_a_list_is_narrowed_by_model_notes_and_time(client: Client, herd: Herd) -> None:
    for job_id, notes in (("a", {"shop": "one"}), ("b", {"shop": "two", "n": "1"}), ("c", {})):
        herd.submit(job_id, JOB.model_copy(update={"metadata": notes}))
        end_here(herd, job_id)
    assert ids(client, metadata={"shop": "two"}) == ["b"]
    assert ids(client, metadata={"shop": "two", "n": "2"}) == []
    assert ids(client, model="tales") == ["c", "b", "a"]
    assert ids(client, model="other") == []
    herd.redis.hincrby(herd.ledger.job_key("a"), "ended_ms", -60_000)
    assert ids(client, since_s=30) == ["c", "b"]
    assert client.jobs(state="ended")[1].metadata == {"shop": "two", "n": "1"}


def test_pages_follow_each_other_whatever_is_left_out(client: Client, herd: Herd) -> None:
    for number in range(30):
        herd.submit(f"job-{number:02}", JOB.model_copy(update={"metadata": {"odd": str(number % 2)}}))
        cancel(herd, f"job-{number:02}")
    whole = [f"job-{number:02}" for number in reversed(range(30))]
    for notes, wanted in ((None, whole), ({"odd": "1"}, whole[::2])):
        pages, after = list[str](), None
        while page := ids(client, metadata=notes, limit=7, after=after):
            pages += page
            after = page[-1]
        assert pages == wanted
    herd.submit("waits")
    for job_id in ("never-seen", "waits"):
        with pytest.raises(InvalidJob, match=f"after: no job {job_id} is among"):
            client.jobs(state="ended", after=job_id)


def purge(herd: Herd, job_id: str) -> None:
    run_call(herd.redis, herd.ledger.purge(job_id))


def expire(herd: Herd, job_id: str) -> None:
    herd.redis.delete(herd.ledger.job_key(job_id), herd.ledger.events_key(job_id))


@pytest.mark.parametrize("goes", [purge, expire])
@pytest.mark.parametrize("ends", [cancel, fail])
def test_pages_go_on_behind_a_job_that_is_gone(
    client: Client, herd: Herd, ends: Callable[[Herd, str], None], goes: Callable[[Herd, str], None]
) -> None:
    """As whoever purges all that he lists does; some end in one millisecond."""
    whole = {f"job-{number:02}" for number in range(30)}
    for number, job_id in enumerate(sorted(whole)):
        herd.submit(job_id)
        ends(herd, job_id)
        for key in LISTS:
            herd.redis.zadd(key, {job_id: 7 + number // 8}, xx=True)
        herd.redis.hset(herd.ledger.job_key(job_id), "ended_ms", 7 + number // 8)
    state: EndedState = "failed" if ends is fail else "cancelled"
    pages, after = list[str](), None
    while page := ids(client, state, limit=7, after=after):
        pages += page
        after = page[-1]
        for job_id in (*page, page[-1]):  # and a purge may be repeated
            goes(herd, job_id)
    assert pages == sorted(whole, reverse=True)
    assert ids(client) == []


def test_rows_of_batches_and_what_a_purge_has_taken_are_not_listed(client: Client, herd: Herd) -> None:
    for job_id in ("batch-run-1", "a"):
        herd.submit(job_id)
        fail(herd, job_id)
    assert ids(client) == ids(client, "failed") == ["a"]
    run_call(herd.redis, herd.ledger.purge("a"))
    assert not herd.redis.exists(*LISTS)


def test_the_lists_are_bounded(client: Client, herd: Herd) -> None:
    for key in LISTS:
        herd.redis.zadd(key, {f"old-{number}": number for number in range(10_000)})
    herd.submit("a")
    fail(herd, "a")
    assert [herd.redis.zcard(key) for key in LISTS] == [10_000, 10_000]
    assert ids(client) == ["a"]


def test_the_lists_go_with_the_last_job_that_they_name(herd: Herd) -> None:
    """Else each tenant that comes no more leaves ten thousand names for ever."""
    for job_id, keep_s in (("short", 10), ("long", 1_000_000), ("again", 10)):
        herd.submit(job_id, JOB.model_copy(update={"keep_s": keep_s}))
        fail(herd, job_id)
    lives_ms = [herd.redis.pttl(key) for key in (*LISTS, herd.ledger.job_key("long"))]
    assert lives_ms == sorted(lives_ms, reverse=True)
    assert lives_ms[0] <= 1_000_000_000


@pytest.mark.parametrize("key", LISTS)
def test_a_list_of_another_type_holds_up_no_end(client: Client, herd: Herd, key: str) -> None:
    herd.redis.set(key, "nothing of ours")
    herd.submit("a")
    fail(herd, "a")
    run_call(herd.redis, herd.ledger.purge("a"))


def test_notes_that_somebody_has_spoilt_are_none(client: Client, herd: Herd) -> None:
    for value in (b"", b"{", b"7", b'{"a": 7}', b"\xff"):
        herd.redis.flushdb()
        herd.submit("a")
        end_here(herd, "a")
        herd.redis.hset(herd.ledger.job_key("a"), "metadata", value)
        assert client.jobs(state="ended")[0].metadata == {}
        assert ids(client, metadata={"a": "7"}) == []


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"since_s": 5}, "since_s: jobs that run or wait are not chosen by it"),
        ({"metadata": {}, "state": "running"}, "metadata: jobs that run or wait"),
        ({"after": "a"}, "after: jobs that run or wait"),
        (
            {"since_s": math.nan, "state": "failed"},
            "since_s: must be 0 to 315360000 seconds, ten years, got nan",
        ),
        ({"older_s": -1.0}, "older_s: must be 0 to 315360000 seconds, ten years, got -1"),
        ({"older_s": 5, "state": "failed"}, "older_s: jobs that have ended are not chosen by it"),
    ],
)
def test_a_choice_that_such_jobs_do_not_have_is_refused(
    client: Client, choice: dict[str, object], complaint: str
) -> None:
    with pytest.raises(BadInput, match=complaint):
        client.jobs(**choice)  # type: ignore[arg-type]


def test_a_timeline_tells_each_moment_that_was_noted(client: Client, herd: Herd) -> None:
    herd.submit("a", JOB.model_copy(update={"not_before": 1}))
    end_here(herd, "a")
    moments = client.history("a").timeline
    assert [one.what for one in moments] == ["started", "queued", "claimed", "ended"]  # its start says 1970
    assert (moments[2].worker, moments[3].note) == ("w", "stop")
    assert moments == sorted(moments, key=lambda one: one.at_ms)
    fields = json.loads(herd.redis.hget(herd.ledger.job_key("a"), "body"))
    assert fields["prompt"] == JOB.prompt


def test_a_page_costs_what_it_returns_and_not_what_is_listed(herd: Herd) -> None:
    for number in range(300):
        herd.submit(str(number))
        cancel(herd, str(number))
    page = run_dialogue(herd.redis, JobLists().ended_jobs(most=5))
    assert page.next is not None
    assert (len(page.rows), page.next.job_id) == (5, page.rows[-1].job_id)
    assert [row.record.state for row in page.rows] == ["cancelled"] * 5


@pytest.mark.parametrize("state", ["ended", "failed"])
def test_a_page_takes_few_calls_though_most_of_the_list_is_kept_no_longer(
    client: Client, herd: Herd, state: EndedState
) -> None:
    """As of any herd that ended ten thousand jobs once: the list has their ids, and no record is left."""
    for key in LISTS:
        herd.redis.zadd(key, {f"gone-{number}": 7 + number for number in range(9000)})
    herd.submit("a")
    fail(herd, "a")
    for key in LISTS:
        herd.redis.zadd(key, {"a": 1}, xx=True)
    found = list[str]()
    calls = commands(herd.redis, lambda: found.extend(ids(client, state, limit=20)), by_scripts=False)
    assert found == ["a"]
    assert sum(one.startswith("EVALSHA") for one in calls) <= 17


def test_the_states_of_a_list_are_those_in_which_a_job_ends() -> None:
    assert {*ENDED} == {"ended", *get_args(FinalState)}
