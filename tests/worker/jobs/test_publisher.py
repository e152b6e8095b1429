"""The publisher against a real ledger: what it does when Redis answers, loses, refuses or forgets."""

from collections.abc import Callable
from threading import Thread
from time import monotonic
from typing import Any

import pytest
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.tasks.ledger.answers import Release, Yours
from llama_herd.tasks.ledger.held_jobs import MAX_ENTRIES, TenantEntry, emit
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End, Failure, Started, Token
from llama_herd.worker.engine.interface import Admitted, Finished, Lost
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_calls import _lots
from llama_herd.worker.jobs.publisher import GONE, LeftJob, RefusedJob
from tests.local.processes import wait_until
from tests.worker.jobs.publisher_desk import OWNER, Desk, LosesReplies, new_attempt, new_words

pytestmark = pytest.mark.redis


@pytest.fixture
def desk(redis: Redis) -> Desk:
    return Desk(redis)


def test_steps_that_wait_become_one_event_a_job(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.start(attempt)
    desk.say(attempt, 1)
    desk.say(attempt, 2)
    desk.say(attempt, 3, end="stop")
    desk.send()
    assert [event.type for event in desk.events("job")] == ["started", "token", "end"]
    result = desk.result("job")
    assert (result.text, result.ids, result.finish_reason) == (" one two three", (1, 2, 3), "stop")
    assert desk.ended == ["job"]
    assert desk.in_hand == []


def test_the_final_event_knows_its_text(desk: Desk) -> None:
    from hashlib import sha256

    attempt = desk.open("job")
    desk.say(attempt, 1, 2)
    desk.send()
    desk.say(attempt, 3, end="length")
    desk.send()
    end = desk.events("job")[-1]
    assert isinstance(end, End)
    assert end.text_sha256 == sha256(b" one two three").hexdigest()
    assert end.n == 3


def test_held_tokens_wait_for_their_time_but_never_beyond_the_end(desk: Desk) -> None:
    attempt = desk.open("job", flush_ms=60_000)
    desk.say(attempt, 1)
    desk.send()
    desk.say(attempt, 2)
    desk.publisher._outgoing(desk.publisher._take())
    assert len(desk.events("job")) == 1
    desk.say(attempt, 3, end="stop")
    desk.send()
    assert [event.ids for event in desk.events("job") if isinstance(event, Token)] == [(1,), (2, 3)]


@pytest.mark.long
def test_a_lost_reply_writes_nothing_twice(redis: Redis) -> None:
    desk = Desk(redis, wire=LosesReplies(redis, 3))  # type: ignore[arg-type]
    attempt = desk.open("job")
    desk.say(attempt, 1, 2)
    desk.send()
    desk.say(attempt, 3, end="stop")
    desk.send()
    assert desk.result("job").ids == (1, 2, 3)
    assert [event.seq for event in desk.events("job")] == [1, 2, 3]


def test_a_cancelled_job_gets_its_end_and_nothing_else(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.say(attempt, 1)
    desk.send()
    run_call(desk.redis, desk.ledger.cancel("job"))
    desk.say(attempt, 2, 3)
    desk.send()
    result = desk.result("job")
    assert (result.finish_reason, result.ids, result.text) == ("cancelled", (1,), " one")
    end = desk.events("job")[-1]
    assert isinstance(end, End)
    assert (end.seq, end.n) == (2, 1)
    assert desk.ended == ["job"]


def test_a_start_that_a_cancel_forestalls_counts_as_none(desk: Desk) -> None:
    attempt = desk.open("job")
    run_call(desk.redis, desk.ledger.cancel("job"))
    desk.start(attempt)
    desk.send()
    (end,) = desk.events("job")
    assert isinstance(end, End)
    assert (end.finish_reason, end.attempts) == ("cancelled", 0)
    assert desk.redis.hget(desk.ledger.job_key("job"), "attempts") == b"0"


def test_an_end_that_races_a_cancel_stands(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.say(attempt, 1)
    desk.send()
    run_call(desk.redis, desk.ledger.cancel("job"))
    desk.say(attempt, end="stop")
    desk.send()
    assert desk.result("job").finish_reason == "stop"


def test_another_owner_fences_this_one_and_its_neighbours_go_on(desk: Desk) -> None:
    mine, gone = desk.open("mine"), desk.open("gone")
    desk.redis.hset(desk.ledger.job_key("gone"), "lease", 0)
    assert isinstance(run_call(desk.redis, desk.ledger.claim("gone", "owner-2")), Yours)
    desk.say(mine, 1, end="stop")
    desk.say(gone, 1, 2, end="stop")
    desk.send()
    assert desk.ended == ["mine"]
    assert desk.lost == ["gone"]
    assert desk.events("gone") == []


def test_a_job_that_is_claimed_again_is_lost_to_its_earlier_attempt_only(desk: Desk) -> None:
    earlier = desk.open("job")
    desk.say(earlier, 1)
    desk.redis.hset(desk.ledger.job_key("job"), "lease", 1)
    claimed = run_call(desk.redis, desk.ledger.claim("job", OWNER))
    assert isinstance(claimed, Yours)
    again = new_attempt("job", claimed)
    entries = desk.publisher._outgoing(desk.publisher._take())  # on their way when the claim is answered
    desk.claims.begin(again)
    assert desk.lost == ["job"]
    assert desk.publisher._act_on(desk.publisher._calls.send(entries), 0.0) == []
    assert desk.in_hand == [again]
    desk.say(again, 2, end="stop")
    desk.send()
    assert desk.result("job").ids == (2,)


def test_what_an_engine_still_brings_for_an_earlier_attempt_goes_nowhere(desk: Desk) -> None:
    """The engine may have drawn it before it was told to drop those sequences."""
    earlier = desk.open("job")
    desk.redis.hset(desk.ledger.job_key("job"), "lease", 1)
    claimed = run_call(desk.redis, desk.ledger.claim("job", OWNER))
    assert isinstance(claimed, Yours)
    again = new_attempt("job", claimed)
    desk.claims.begin(again)
    desk.say(again, 1)
    desk.say(earlier, 2, end="stop")
    desk.say(again, 3, end="stop")
    desk.send()
    assert desk.result("job").ids == (1, 3)


def test_events_that_redis_forgot_are_sent_again_with_the_same_borders(desk: Desk) -> None:
    attempt = desk.open("job")
    for words in ((1,), (2, 3), (1, 1)):
        desk.say(attempt, *words)
        desk.send()
    before = desk.events("job")
    desk.redis.delete(desk.ledger.events_key("job"))
    desk.redis.xadd(desk.ledger.events_key("job"), {"e": before[0].to_json()}, id="1-0")
    desk.redis.hset(desk.ledger.job_key("job"), mapping={"seq": 1, "n": 1})
    desk.say(attempt, 3, end="stop")
    desk.send()
    assert desk.events("job")[:3] == before
    assert desk.result("job").ids == (1, 2, 3, 1, 1, 3)


def test_what_an_earlier_attempt_wrote_after_redis_forgot_its_claim_ends_the_new_one(desk: Desk) -> None:
    """Both are claim 1 of one owner. The lease brings the job back, from what is written."""
    earlier = desk.open("job")
    desk.start(earlier)
    desk.say(earlier, 1, 2, 3)
    entries = desk.publisher._outgoing(desk.publisher._take())  # on their way when Redis comes back
    desk.redis.delete(desk.ledger.job_key("job"), desk.ledger.key("leases"))
    again = desk.open("job")
    desk.publisher._act_on(desk.publisher._calls.send(entries), 0.0)
    desk.lost.clear()
    desk.start(again)
    for word in (1, 2):
        desk.say(again, word)
        desk.send()
    assert desk.lost == ["job"]
    assert [event.seq for event in desk.events("job")] == [1, 2]


@pytest.mark.parametrize("part", [Ledger.job_key, Ledger.events_key])
def test_a_job_of_which_redis_has_lost_a_part_ends_right_behind_what_was_recorded(
    desk: Desk, part: Callable[[Ledger, str], str]
) -> None:
    attempt = desk.open("job")
    desk.start(attempt)
    desk.say(attempt, 1)
    desk.send()
    desk.redis.delete(part(desk.ledger, "job"))
    desk.say(attempt, 2, end="stop")
    desk.send()
    last = desk.events("job")[-1]
    assert isinstance(last, End)
    assert last.error is not None
    assert (last.seq, last.n, last.error.code) == (3, 1, "unreadable")
    assert (desk.ended, desk.lost) == (["job"], [])


@pytest.mark.parametrize("is_stream", [True, False], ids=["ahead of its record", "no stream"])
def test_a_broken_stream_costs_its_own_job_only(desk: Desk, is_stream: bool) -> None:
    good, broken = desk.open("good"), desk.open("broken")
    if is_stream:  # a script has been stopped between the two by a right that its user no longer has
        desk.redis.xadd(desk.ledger.events_key("broken"), {"e": "x"}, "9-0")
    else:
        desk.redis.set(desk.ledger.events_key("broken"), "not a stream")
    desk.say(broken, 1)
    desk.say(good, 1, end="stop")
    desk.send()
    assert (desk.ended, desk.lost) == (["good", "broken"], [])
    record = run_call(desk.redis, desk.ledger.record("broken"))
    assert record is not None
    assert record.state == "failed", "there is no place for its end, so the record says it alone"


def test_what_an_engine_loses_of_a_job_that_has_ended_changes_nothing(desk: Desk) -> None:
    """Its final event and the loss come together."""
    attempt, lost = desk.open("job"), list[Attempt]()
    desk.publisher._on_lost = lost.append
    desk.start(attempt)
    desk.say(attempt, 1, end="stop")
    desk.publisher.put([Lost(attempt.sequences[0])])
    desk.send()
    desk.publisher._tell_lost()
    assert desk.result("job").ids == (1,)
    assert (desk.ended, lost) == (["job"], [])


def test_a_job_that_cannot_run_ends_with_its_error(desk: Desk) -> None:
    attempt = desk.open("job")
    attempt.sequences = []
    desk.publisher.put([RefusedJob(attempt, "error", Failure(code="prompt_too_long", message="9 > 8"))])
    desk.send()
    result = desk.result("job")
    assert result.error == Failure(code="prompt_too_long", message="9 > 8")
    assert result.usage is None


def test_a_stopping_publisher_sends_what_waits(desk: Desk) -> None:
    attempt = desk.open("job", flush_ms=60_000)
    desk.say(attempt, 1)
    desk.send()
    desk.publisher.start()
    desk.say(attempt, 2)  # is gathered
    desk.publisher.stop()
    assert [i for event in desk.events("job") if isinstance(event, Token) for i in event.ids] == [1, 2]


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "away"])
def test_a_stopping_publisher_gives_up_on_a_redis_that_takes_nothing(
    redis: Any, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """One that refuses answers each call, so no connection says that it is time."""
    monkeypatch.setattr("llama_herd.worker.jobs.publisher.STOPPING_S", 0.0)
    desk = Desk(redis, redis if refuses else LosesReplies(redis, 1_000_000))  # type: ignore[arg-type]
    attempt = desk.open("job")
    redis.config_set("min-replicas-to-write", int(refuses))
    try:
        with capture_logs() as lines:
            desk.publisher.start()
            desk.say(attempt, 1)
            wait_until(lambda: desk.publisher._calls.num_repeats > 1, "it is tried again")
            Thread(target=desk.publisher.stop, daemon=True).start()
            wait_until(lambda: not desk.publisher.is_alive(), "it has given up")
    finally:
        redis.config_set("min-replicas-to-write", 0)
    told = [one["event"] for one in lines if one["event"].endswith(", retrying")]
    assert len(told) == 1, told
    assert (desk.ended, desk.lost, desk.in_hand) == ([], [], [attempt]), "it is released after this"


def test_calls_are_repeated_byte_for_byte(desk: Desk) -> None:
    attempt = desk.open("job")
    attempt.stream.add(new_words(attempt, 1))
    entries = [TenantEntry(desk.ledger, entry) for entry in attempt.stream.flush()]
    first = emit(OWNER, entries, desk.ledger)
    attempt.stream.add(new_words(attempt, 2))
    assert emit(OWNER, entries, desk.ledger).command == first.command


THREE = {"sampling": {"n": 3}}


def test_each_of_several_outputs_has_a_dense_stream_of_its_own(desk: Desk) -> None:
    attempt = desk.open("job", **THREE)
    desk.start(attempt)
    desk.say(attempt, 1, choice=0)
    desk.say(attempt, 2, 3, choice=2)
    desk.send()
    desk.say(attempt, 1, choice=1, end="length")
    desk.say(attempt, 3, choice=2, end="stop")
    desk.say(attempt, 2, choice=0, end="stop")
    desk.send()
    started, *tokens, _ = desk.events("job")
    assert isinstance(started, Started)
    assert started.n == 3
    found = [(t.choice, t.i, t.ids, t.finish_reason) for t in tokens if isinstance(t, Token)]
    assert found == [
        (0, 0, (1,), None),
        (2, 0, (2, 3), None),
        (0, 1, (2,), "stop"),
        (1, 0, (1,), "length"),
        (2, 2, (3,), "stop"),
    ]


def test_a_job_with_several_outputs_ends_with_the_last_of_them(desk: Desk) -> None:
    attempt = desk.open("job", **THREE)
    desk.start(attempt)
    for choice, end in enumerate(("stop", "length", "stop")):
        assert desk.ended == []
        desk.say(attempt, choice + 1, choice=choice, end=end)  # type: ignore[arg-type]
        desk.send()
    result = desk.result("job")
    assert desk.ended == ["job"]
    assert result.finish_reason == "length"
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 3)
    assert result.choices is not None
    assert [(c.index, c.ids, c.finish_reason) for c in result.choices] == [
        (0, (1,), "stop"),
        (1, (2,), "length"),
        (2, (3,), "stop"),
    ]
    assert result.ids == (1,)


@pytest.mark.parametrize("num", [2, 3])
def test_each_of_several_outputs_says_that_it_has_ended_though_its_tokens_have_gone(
    desk: Desk, num: int
) -> None:
    """Else whoever takes the job over would draw more of it."""
    attempt = desk.open("job", sampling={"n": num})
    desk.start(attempt)
    for choice in range(num):
        desk.say(attempt, 1, choice=choice)
    desk.send()
    for choice in range(num):
        desk.say(attempt, choice=choice, end="stop")
        desk.send()
    tokens = [event for event in desk.events("job") if isinstance(event, Token)]
    assert [one.choice for one in tokens if one.finish_reason] == [*range(num)]


def test_what_stops_one_of_several_outputs_ends_the_job_and_nothing_follows(desk: Desk) -> None:
    attempt = desk.open("job", **THREE)
    desk.start(attempt)
    desk.say(attempt, 1, choice=0, end="stop")
    desk.publisher.put([Finished(one, "cancelled") for one in attempt.sequences[1:]])
    desk.say(attempt, 2, choice=1)
    desk.send()
    result = desk.result("job")
    assert desk.ended == ["job"]
    assert result.finish_reason == "cancelled"
    assert result.choices is not None
    assert [c.finish_reason for c in result.choices] == ["stop", "cancelled", "cancelled"]
    assert isinstance(desk.events("job")[-1], End)


def test_a_job_that_was_given_back_is_closed_without_an_event(desk: Desk) -> None:
    attempt = desk.open("job")
    assert run_call(desk.redis, desk.ledger.release("job", OWNER, attempt.stream.epoch)) is Release.RELEASED
    desk.publisher.put([LeftJob(attempt, Attempt.acknowledge)])
    desk.send()
    assert (desk.released, desk.lost, desk.in_hand) == (["job"], [], [])
    assert desk.events("job") == []


def test_what_began_before_it_was_given_back_is_fenced(desk: Desk) -> None:
    attempt = desk.open("job")
    run_call(desk.redis, desk.ledger.release("job", OWNER, attempt.stream.epoch))
    desk.start(attempt)
    desk.publisher.put([LeftJob(attempt, Attempt.acknowledge)])
    desk.send()
    assert desk.events("job") == []
    assert (desk.released, desk.lost) == (["job"], [])


@pytest.mark.parametrize(("is_gone", "reason"), [(True, GONE), (False, "")], ids=["no record", "another's"])
def test_why_a_job_has_left_is_told(desk: Desk, is_gone: bool, reason: str) -> None:
    """An operator sees whether Redis came back without its data."""
    attempt = desk.open("job")
    desk.start(attempt)
    desk.send()
    if is_gone:
        desk.redis.flushdb()
    else:
        desk.redis.hset(desk.ledger.job_key("job"), "owner", "another")
    desk.say(attempt, 1)
    with capture_logs() as lines:
        desk.send()
    assert [(one["event"], one["reason"]) for one in lines] == [("job left this worker", reason)]


@pytest.mark.parametrize("command", ["evalsha", "xadd"])
def test_a_right_that_is_taken_away_is_named_with_the_fix(desk: Desk, command: str) -> None:
    attempt, redis = desk.open("job"), desk.redis
    desk.start(attempt)
    desk.send()
    desk.say(attempt, 1)
    redis.execute_command("ACL SETUSER", "default", f"-{command}")  # type: ignore[no-untyped-call]
    try:
        with capture_logs() as lines:
            desk.send()
    finally:
        redis.execute_command("ACL SETUSER", "default", "+@all")  # type: ignore[no-untyped-call]
    told = lines[0]["reason"]
    assert told.startswith("Redis does not let this user record events (NOPERM): ")
    assert told.endswith(". Fix: give it the role that it needs (herd acl), see docs/security.md")


@pytest.mark.long
def test_a_redis_that_is_a_replica_for_a_while_costs_no_job(desk: Desk) -> None:
    """A failover leaves connections to what was the primary."""
    attempt = desk.open("job")
    desk.start(attempt)
    desk.send()
    desk.say(attempt, 1, end="stop")
    redis: Any = desk.redis
    redis.config_resetstat()
    redis.replicaof("127.0.0.1", 1)
    try:
        sending = Thread(target=desk.send)
        sending.start()
        wait_until(lambda: "cmdstat_evalsha" in redis.info("commandstats"), "the publisher tries")
    finally:
        redis.replicaof("NO", "ONE")
    sending.join()
    assert (desk.lost, desk.ended) == ([], ["job"])
    assert desk.result("job").text == " one"


def test_what_has_started_on_record_may_be_computed(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.publisher._outgoing([Admitted(attempt.sequences[0])])
    assert desk.started == []
    missed = attempt.stream.after(0, 0)
    assert missed is not None
    desk.publisher._deliver([(attempt, entry) for entry in missed])
    assert desk.started == ["job"]
    desk.publisher._deliver([(attempt, entry) for entry in missed])
    assert desk.started == ["job", "job"], "a reply that was lost is made up for"


def test_what_stands_in_the_ledger_as_anothers_is_never_computed(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.redis.hset(desk.ledger.job_key("job"), "owner", "another")
    desk.start(attempt)
    desk.send()
    assert (desk.started, desk.lost) == ([], ["job"])


def test_while_calls_are_slow_the_next_event_comes_later(desk: Desk) -> None:
    slow, each_step = desk.open("slow", flush_ms=50), desk.open("each-step", flush_ms=0)
    desk.publisher._call_s = 60.0
    for attempt in (slow, each_step):
        desk.start(attempt)
        desk.say(attempt, 1)
    desk.send()
    now_s = monotonic()
    for attempt in (slow, each_step):
        desk.say(attempt, 2)
    desk.send()
    assert slow.stream.due_s - now_s > 60.0
    assert [event.type for event in desk.events("slow")] == ["started", "token"]
    assert [event.type for event in desk.events("each-step")] == ["started", "token", "token"]


def test_how_slow_calls_are_is_known_from_those_of_late(desk: Desk) -> None:
    for _ in range(50):
        desk.publisher._note_call(60.0)
    assert 0.4 < desk.publisher._call_s <= 0.5, "a Redis that was away for a minute says nothing of its pace"
    for _ in range(50):
        desk.publisher._note_call(0.001)
    assert desk.publisher._call_s < 0.002


def test_no_call_has_more_events_than_one_takes(desk: Desk) -> None:
    jobs = [desk.open(f"job-{number}", flush_ms=0) for number in range(3)]
    events = [(attempt, attempt.stream.start(1, 1)) for _ in range(MAX_ENTRIES // 2) for attempt in jobs]
    assert [len(lot) for lot in _lots(events)] == [MAX_ENTRIES, MAX_ENTRIES // 2]
    desk.publisher._deliver(events)
    for attempt in jobs:
        assert [event.seq for event in desk.events(attempt.job_id)] == list(range(1, MAX_ENTRIES // 2 + 1))
