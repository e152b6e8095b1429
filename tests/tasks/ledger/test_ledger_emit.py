"""EMIT: every answer, and that refused events leave no trace."""

from itertools import takewhile
from typing import Any

import pytest

from llama_herd.tasks.ledger.answers import Emission, Emitted
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Token
from tests.tasks.herd import Herd, end, started, token

pytestmark = pytest.mark.redis


def everything(herd: Herd) -> dict[bytes, Any]:
    """All that Redis holds, but for leases, which time alone may move."""
    dump = {}
    for key in herd.redis.scan_iter():
        kind = herd.redis.type(key)
        if kind == b"hash":
            dump[key] = {k: v for k, v in herd.redis.hgetall(key).items() if k != b"lease"}
        elif kind == b"stream":
            dump[key] = herd.redis.xrange(key)
        elif key != b"herd:default:leases":
            dump[key] = herd.redis.dump(key)
    return dump


def subscribe(herd: Herd, *job_ids: str) -> Any:
    subscriber = herd.redis.pubsub()
    subscriber.subscribe(*map(herd.ledger.channel, job_ids))
    for _ in job_ids:
        assert next(subscriber.listen())["type"] == "subscribe"
    return subscriber


def heard(herd: Herd, subscriber: Any) -> list[bytes]:
    """All that was published of these jobs; job `a` is one of them."""
    herd.redis.publish(herd.ledger.channel("a"), "that was all")
    messages = (message["data"] for message in subscriber.listen())
    return list(takewhile(lambda message: message != b"that was all", messages))


def test_a_step_is_recorded_and_published_alike(running: Herd) -> None:
    subscriber = subscribe(running, "a")
    running.emit("one", token("a", 3, 2, 7), end("a", 4, 3))
    stored = running.redis.xrange(running.ledger.events_key("a"))
    assert [entry_id for entry_id, _ in stored] == [b"1-0", b"2-0", b"3-0", b"4-0"]
    assert [fields[b"e"] for _, fields in stored][2:] == heard(running, subscriber)
    assert [event.seq for event in running.events("a")] == [1, 2, 3, 4]


def test_tokens_renew_the_lease_and_forgive_deaths(running: Herd) -> None:
    assert (running.field("a", "deaths"), running.field("a", "attempts")) == ("0", "1")
    running.pass_lease("a")
    assert running.kinds("one", token("a", 3, 2)) == ["ok"]
    lease = int(running.field("a", "lease"))
    assert lease > int(running.redis.time()[0]) * 1000
    assert running.redis.zscore("herd:default:leases", "a") == lease
    assert (running.field("a", "n"), running.field("a", "seq")) == ("3", "3")


def test_an_event_of_text_alone_forgives_nothing(herd: Herd) -> None:
    herd.submit("a")
    herd.claim("a", "one")
    herd.emit("one", started("a"))
    herd.pass_lease("a")
    herd.claim("a", "one")
    empty = EmitEntry("a", 2, 3, 0, 0, "token", token("a", 3, 0, epoch=2).event)
    assert herd.kinds("one", started("a", seq=2, epoch=2), empty) == ["ok", "ok"]
    assert (herd.field("a", "deaths"), herd.field("a", "n")) == ("1", "0")


def test_an_end_closes_the_record(running: Herd) -> None:
    assert running.kinds("one", end("a", 3, 2)) == ["ok"]
    assert (running.field("a", "state"), running.field("a", "lease")) == ("done", "0")
    assert 0 < running.redis.ttl(running.ledger.job_key("a")) <= running.ledger.stream_ttl_s
    assert 0 < running.redis.ttl(running.ledger.events_key("a")) <= running.ledger.stream_ttl_s
    assert running.redis.exists("herd:default:leases") == 0


def test_a_token_before_an_end_in_one_call_leaves_no_lease(running: Herd) -> None:
    assert running.kinds("one", token("a", 3, 2), end("a", 4, 3)) == ["ok", "ok"]
    assert running.redis.exists("herd:default:leases") == 0


REFUSED = {
    "another owner": ("two", [token("a", 3, 2)], Emitted(Emission.FENCED, 2, 2)),
    "an old epoch": ("one", [token("a", 3, 2, epoch=0)], Emitted(Emission.FENCED, 2, 2)),
    "a coming epoch": ("one", [token("a", 3, 2, epoch=2)], Emitted(Emission.FENCED, 2, 2)),
    "no record": ("one", [token("zz", 1, 0)], Emitted(Emission.FENCED, 0, 0)),
    "a seq too far": ("one", [token("a", 4, 2)], Emitted(Emission.GAP, 2, 2)),
    "tokens too far": ("one", [token("a", 3, 3)], Emitted(Emission.GAP, 2, 2)),
    "tokens again under a new seq": ("one", [token("a", 3, 1)], Emitted(Emission.GAP, 2, 2)),
    "an end that forgets a token": ("one", [end("a", 3, 1)], Emitted(Emission.GAP, 2, 2)),
    "the same again": ("one", [token("a", 2, 0, 5, 6)], Emitted(Emission.DUPLICATE)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(running: Herd, case: str) -> None:
    owner, entries, answer = REFUSED[case]
    before = everything(running)
    assert running.emit(owner, *entries) == [answer]
    assert everything(running) == before


def test_after_the_end_its_repeat_is_a_duplicate_and_another_event_is_not(running: Herd) -> None:
    running.emit("one", end("a", 3, 2))
    before = everything(running)
    assert running.emit("one", end("a", 3, 2), token("a", 4, 2), end("a", 4, 2)) == [
        Emitted(Emission.DUPLICATE),
        Emitted(Emission.FINISHED, 3, 2, "done"),
        Emitted(Emission.FINISHED, 3, 2, "done"),
    ]
    assert everything(running) == before


def test_a_cancelled_job_takes_its_end_and_what_was_held_back_and_no_more(running: Herd) -> None:
    run_call(running.redis, running.ledger.cancel("a", "deadline"))
    refused = Emitted(Emission.CANCELLED, 2, 2, "deadline")
    # What follows a refused event in one call was written in ignorance of it, an end too.
    assert running.emit("one", token("a", 3, 2), end("a", 4, 3)) == [refused, refused]
    assert running.emit("one", started("a", 3, i=2)) == [refused]
    held_back = EmitEntry.from_event(Token(seq=3, job="a", epoch=1, i=2, ids=(), text="so far"), 2)
    assert running.kinds("one", held_back, end("a", 4, 2, finish_reason="deadline")) == ["ok", "ok"]
    assert running.field("a", "state") == "failed"


def test_the_same_call_again_is_all_duplicates_and_changes_nothing(running: Herd) -> None:
    """Not for those who listen either: a worker calls again when the answer was lost."""
    running.submit("b")
    running.claim("b", "one")
    subscriber = subscribe(running, "a", "b")
    entries = [token("a", 3, 2), started("b"), token("a", 4, 3), token("b", 2, 0), end("b", 3, 1)]
    assert running.kinds("one", *entries) == ["ok"] * 5
    before = everything(running)
    assert running.kinds("one", *entries) == ["duplicate"] * 5
    assert everything(running) == before
    assert heard(running, subscriber) == [entry.event.encode() for entry in entries]


def test_a_retry_that_reaches_further_is_written_from_where_it_is_new(running: Herd) -> None:
    running.emit("one", token("a", 3, 2))
    assert running.kinds("one", token("a", 3, 2), token("a", 4, 3)) == ["duplicate", "ok"]


@pytest.mark.parametrize("broken", ["stream is a string", "stream is ahead", "record is a string"])
def test_one_broken_job_does_not_harm_its_mates(running: Herd, broken: str) -> None:
    for name in "bc":
        running.submit(name)
        running.claim(name, "one")
    match broken:
        case "stream is a string":
            running.redis.set(running.ledger.events_key("b"), "x")
        case "stream is ahead":
            running.redis.xadd(running.ledger.events_key("b"), {"e": "x"}, id="9-0")
        case _:
            running.redis.delete(running.ledger.job_key("b"))
            running.redis.set(running.ledger.job_key("b"), "x")
    entries = [token("a", 3, 2), started("b"), token("b", 2, 0), started("c"), token("c", 2, 0)]
    answers = running.emit("one", *entries)
    assert [answer.kind for answer in answers] == ["ok", "error", "error", "ok", "ok"]
    assert answers[1].reason
    assert [event.seq for event in running.events("c")] == [1, 2]


def test_a_refusal_of_one_job_does_not_stop_another(running: Herd) -> None:
    running.submit("b")
    running.claim("b", "two")
    entries = [started("b"), token("a", 3, 2), token("b", 2, 0), token("a", 4, 3)]
    assert running.kinds("one", *entries) == ["fenced", "ok", "fenced", "ok"]


@pytest.mark.long
def test_hundreds_of_events_go_in_one_call(herd: Herd) -> None:
    names = [f"job-{number}" for number in range(600)]
    for name in names:
        herd.submit(name)
        herd.claim(name, "one")
    entries = [started(name) for name in names] + [token(name, 2, 0) for name in names]
    assert set(herd.kinds("one", *entries)) == {"ok"}
    assert herd.redis.zcard("herd:default:leases") == 600


@pytest.mark.parametrize(
    ("job_id", "is_cancelled", "life_s"),
    [("a", False, 3600), ("batch-r-1", False, 604_800), ("batch-r-1", True, 3600), ("a", True, 3600)],
)
def test_the_answer_of_a_row_is_kept_until_its_batch_has_written_it(
    herd: Herd, job_id: str, is_cancelled: bool, life_s: int
) -> None:
    herd.submit(job_id)
    if is_cancelled:
        run_call(herd.redis, herd.ledger.cancel(job_id))
    else:
        herd.claimed(job_id)
        herd.emit("one", started(job_id), end(job_id, 2, 0))
    for key in (herd.ledger.job_key(job_id), herd.ledger.events_key(job_id)):
        assert life_s - 60 < herd.redis.ttl(key) <= life_s
