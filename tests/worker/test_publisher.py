"""The publisher against a real ledger: what it does when Redis answers, loses, refuses or forgets."""

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from llama_herd.tasks.answers import Release, Yours
from llama_herd.tasks.call import Call, run
from llama_herd.tasks.events import End, Event, Failure, FinishReason, Started, Token
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import Envelope
from llama_herd.tasks.result import Result
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.claims import ClaimedJobs
from llama_herd.worker.draw import Drawn
from llama_herd.worker.output import Output
from llama_herd.worker.owner import Owner
from llama_herd.worker.publisher import Publisher, Refusal, Released
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.stream import Author, Recorded, Stream
from llama_herd.worker.writer import Writer
from tests.worker.processes import wait_until

pytestmark = pytest.mark.redis

OWNER = "owner-1"
WORDS = (b"", b" one", b" two", b" three")


def new_attempt(job_id: str, claimed: Yours, num_choices: int = 1) -> Attempt:
    stream = Stream(job_id, claimed, Recorded.of([]), Author("w@test", "m"))
    stream.num_choices = num_choices
    sequences = [
        Sequence(job_id, [1], SamplingParams(), 0, 99, frozenset(), Writer(WORDS), choice=choice)
        for choice in range(num_choices)
    ]
    return Attempt(stream, [], sequences)


def output_of(attempt: Attempt, *words: int, choice: int = 0, end: FinishReason | None = None) -> Output:
    """What a step brings that draws these words."""
    text = b"".join(WORDS[word] for word in words).decode()
    return Output(attempt.sequences[choice], tuple(map(Drawn, words)), text, finish_reason=end)


class Desk:
    """A publisher, its ledger, and what it reports."""

    def __init__(self, redis: Redis, wire: Redis | None = None) -> None:
        self.redis = redis
        self.ledger = Ledger(lease_ms=60_000)
        self.ended: list[str] = []
        self.lost: list[str] = []
        self.released: list[str] = []
        self.started: list[str] = []
        self.claims = ClaimedJobs()
        self.publisher = Publisher(
            Owner(wire or redis, self.ledger, OWNER),
            self.claims,
            on_start=lambda attempt: self.started.append(attempt.job_id),
            on_end=lambda attempt: self.ended.append(attempt.job_id),
            on_lost=lambda attempt: self.lost.append(attempt.job_id),
            on_released=lambda attempt: self.released.append(attempt.job_id),
        )

    def open(self, job_id: str, **fields: object) -> Attempt:
        """Submit and claim a job, as the intake does."""
        job = GenerationJob.model_validate({"prompt": "hi", **fields})
        run(self.redis, self.ledger.submit(job_id, job, Envelope.of(job_id, "herd.m")))
        claimed = run(self.redis, self.ledger.claim(job_id, OWNER))
        assert isinstance(claimed, Yours)
        attempt = new_attempt(job_id, claimed, num_choices=job.sampling.n)
        attempt.stream.flush_s = job.flush_ms / 1000
        self.publisher.open(attempt)
        return attempt

    def say(self, attempt: Attempt, *words: int, choice: int = 0, end: FinishReason | None = None) -> None:
        """Queue what a step would bring."""
        self.publisher.put([output_of(attempt, *words, choice=choice, end=end)])

    def start(self, attempt: Attempt) -> None:
        self.publisher.put([Output(sequence, has_started=True) for sequence in attempt.sequences])

    def send(self) -> None:
        """One round of the publisher's loop, in this thread."""
        self.publisher._deliver(self.publisher._entries(self.publisher._take()))

    @property
    def in_hand(self) -> list[Attempt]:
        return self.claims.in_hand()

    def events(self, job_id: str) -> list[Event]:
        return run(self.redis, self.ledger.read(job_id))

    def result(self, job_id: str) -> Result:
        return Result.from_events(self.events(job_id))


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
    desk.publisher._entries(desk.publisher._take())
    assert len(desk.events("job")) == 1
    desk.say(attempt, 3, end="stop")
    desk.send()
    assert [event.ids for event in desk.events("job") if isinstance(event, Token)] == [(1,), (2, 3)]


class LosesReplies:
    """A connection whose calls run, but whose first replies never arrive."""

    def __init__(self, redis: Redis, num_lost: int) -> None:
        self._redis = redis
        self._num_lost = num_lost

    def ping(self) -> bool:
        if self._num_lost:
            raise ConnectionError("reply lost")
        return True

    def pipeline(self, **options: Any) -> Any:
        pipeline = self._redis.pipeline(**options)
        execute = pipeline.execute

        def execute_and_lose(raise_on_error: bool = True) -> list[Any]:
            reply = execute(raise_on_error)
            if self._num_lost:
                self._num_lost -= 1
                raise ConnectionError("reply lost")
            return reply

        pipeline.execute = execute_and_lose  # type: ignore[method-assign]
        return pipeline


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
    run(desk.redis, desk.ledger.cancel("job"))
    desk.say(attempt, 2, 3)
    desk.send()
    result = desk.result("job")
    assert (result.finish_reason, result.ids, result.text) == ("cancelled", (1,), " one")
    end = desk.events("job")[-1]
    assert isinstance(end, End)
    assert (end.seq, end.n) == (2, 1)
    assert desk.ended == ["job"]


def test_an_end_that_races_a_cancel_stands(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.say(attempt, 1)
    desk.send()
    run(desk.redis, desk.ledger.cancel("job"))
    desk.say(attempt, end="stop")
    desk.send()
    assert desk.result("job").finish_reason == "stop"


def test_another_owner_fences_this_one_and_its_neighbours_go_on(desk: Desk) -> None:
    mine, gone = desk.open("mine"), desk.open("gone")
    desk.redis.hset(desk.ledger.job_key("gone"), "lease", 0)
    assert isinstance(run(desk.redis, desk.ledger.claim("gone", "owner-2")), Yours)
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
    claimed = run(desk.redis, desk.ledger.claim("job", OWNER))
    assert isinstance(claimed, Yours)
    again = new_attempt("job", claimed)
    entries = desk.publisher._entries(desk.publisher._take())  # on their way when the claim is answered
    desk.publisher.open(again)
    assert desk.lost == ["job"]
    assert desk.publisher._settle(desk.publisher._send(entries)) == []
    assert desk.in_hand == [again]
    desk.say(again, 2, end="stop")
    desk.send()
    assert desk.result("job").ids == (2,)


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
    entries = desk.publisher._entries(desk.publisher._take())  # on their way when Redis comes back
    desk.redis.delete(desk.ledger.job_key("job"), desk.ledger.key("leases"))
    again = desk.open("job")
    desk.publisher._settle(desk.publisher._send(entries))
    desk.lost.clear()
    desk.start(again)
    for word in (1, 2):
        desk.say(again, word)
        desk.send()
    assert desk.lost == ["job"]
    assert [event.seq for event in desk.events("job")] == [1, 2]


def test_a_broken_stream_costs_its_own_job_only(desk: Desk) -> None:
    good, broken = desk.open("good"), desk.open("broken")
    desk.redis.set(desk.ledger.events_key("broken"), "not a stream")
    desk.say(broken, 1)
    desk.say(good, 1, end="stop")
    desk.send()
    assert (desk.ended, desk.lost) == (["good", "broken"], [])
    record = run(desk.redis, desk.ledger.record("broken"))
    assert record is not None
    assert record.state == "failed", "there is no place for its end, so the record says it alone"


def test_a_job_that_cannot_run_ends_with_its_error(desk: Desk) -> None:
    attempt = desk.open("job")
    attempt.sequences = []
    desk.publisher.put([Refusal(attempt, "error", Failure(code="prompt_too_long", message="9 > 8"))])
    desk.send()
    result = desk.result("job")
    assert result.error == Failure(code="prompt_too_long", message="9 > 8")
    assert result.usage is None


def test_a_stopping_publisher_sends_what_waits(desk: Desk) -> None:
    attempt = desk.open("job", flush_ms=60_000)
    desk.publisher.start()
    desk.say(attempt, 1)
    desk.say(attempt, 2)
    desk.publisher.stop()
    assert [i for event in desk.events("job") if isinstance(event, Token) for i in event.ids] == [1, 2]


def test_calls_are_repeated_byte_for_byte(desk: Desk) -> None:
    attempt = desk.open("job")
    attempt.stream.add(output_of(attempt, 1))
    entries = attempt.stream.flush()
    first: Call[object] = desk.ledger.emit(OWNER, entries)  # type: ignore[assignment]
    attempt.stream.add(output_of(attempt, 2))
    assert desk.ledger.emit(OWNER, entries).command == first.command


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
    assert result.usage.completion_tokens == 3
    assert result.choices is not None
    assert [(c.index, c.ids, c.finish_reason) for c in result.choices] == [
        (0, (1,), "stop"),
        (1, (2,), "length"),
        (2, (3,), "stop"),
    ]
    assert result.ids == (1,)


def test_what_stops_one_of_several_outputs_ends_the_job_and_nothing_follows(desk: Desk) -> None:
    attempt = desk.open("job", **THREE)
    desk.start(attempt)
    desk.say(attempt, 1, choice=0, end="stop")
    desk.publisher.put([Output(one, finish_reason="cancelled") for one in attempt.sequences[1:]])
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
    assert run(desk.redis, desk.ledger.release("job", OWNER, attempt.stream.epoch)) is Release.RELEASED
    desk.publisher.put([Released(attempt)])
    desk.send()
    assert (desk.released, desk.lost, desk.in_hand) == (["job"], [], [])
    assert desk.events("job") == []


def test_what_began_before_it_was_given_back_is_fenced(desk: Desk) -> None:
    attempt = desk.open("job")
    run(desk.redis, desk.ledger.release("job", OWNER, attempt.stream.epoch))
    desk.start(attempt)
    desk.publisher.put([Released(attempt)])
    desk.send()
    assert desk.events("job") == []
    assert (desk.released, desk.lost) == (["job"], [])


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


def break_at(redis: Redis, megabytes: int | None) -> None:
    """Let Redis close connections at arguments longer than this; None: as it is without a setting."""
    redis.config_set("proto-max-bulk-len", f"{megabytes or 512}mb")


@pytest.fixture(params=[1, 8, None], ids=["1mb", "8mb", "unset"])
def bulk_mb(redis: Redis, request: pytest.FixtureRequest) -> Iterator[int | None]:
    break_at(redis, request.param)
    yield request.param
    break_at(redis, None)


def test_an_event_that_redis_cannot_take_ends_its_job_alone(desk: Desk, bulk_mb: int | None) -> None:
    """Nobody waits for it: the others' events go on in calls of their own."""
    huge, mate = desk.open("huge"), desk.open("mate")
    desk.start(huge)
    desk.say(huge, 1)
    desk.say(mate, 1)
    desk.send()
    text = "x" * (2_000_000 if bulk_mb == 1 else 9_000_000)
    desk.publisher.put([Output(huge.sequences[0], (Drawn(2),), text, finish_reason="stop")])
    desk.say(mate, 2, end="stop")
    desk.send()
    assert desk.result("mate").ids == (1, 2)
    assert desk.ended == ["mate", "huge"]
    result = desk.result("huge")
    if bulk_mb is None:
        assert (result.finish_reason, result.ids) == ("stop", (1, 2))
        return
    assert (result.finish_reason, result.ids) == ("error", (1,))
    assert result.error is not None
    assert result.error.code == "not_recorded"
    assert len(result.error.message) < 300


class RefusesOneJob:
    """A connection to a Redis that takes no event of one job: all, or those longer than an end."""

    def __init__(self, redis: Redis, job_id: str, longest: int) -> None:
        self._redis = redis
        self._mark = f'"job":"{job_id}"'
        self._longest = longest

    def pipeline(self, **options: Any) -> Any:
        pipeline = self._redis.pipeline(**options)
        execute_command = pipeline.execute_command

        def refuse_or_execute(*parts: Any) -> Any:
            events = [part for part in parts if isinstance(part, str) and self._mark in part]
            if any(len(event) > self._longest for event in events):
                return execute_command("EVAL", "error('no')", 0)  # type: ignore[no-untyped-call]
            return execute_command(*parts)  # type: ignore[no-untyped-call]

        pipeline.execute_command = refuse_or_execute  # type: ignore[method-assign]
        return pipeline


@pytest.mark.parametrize("num_mates", [0, 1, 6, 33])
@pytest.mark.parametrize("longest", [0, 1_000])
def test_a_call_that_redis_refuses_is_halved_until_the_job_that_breaks_it_is_alone(
    redis: Redis, num_mates: int, longest: int
) -> None:
    desk = Desk(redis, RefusesOneJob(redis, "broken", longest))  # type: ignore[arg-type]
    attempts = [desk.open(f"mate-{number}") for number in range(num_mates)]
    broken = desk.open("broken")
    attempts.insert(num_mates // 2, broken)
    for attempt in attempts:
        desk.publisher.put([Output(attempt.sequences[0], (Drawn(1),), "x" * 2_000, finish_reason="stop")])
    desk.send()
    assert len(desk.ended) == num_mates + bool(longest)
    for number in range(num_mates):
        assert desk.result(f"mate-{number}").ids == (1,)
    assert desk.in_hand == []
    if longest:
        error = desk.result("broken").error
        assert error is not None
        assert error.code == "not_recorded"
    else:
        assert (desk.lost, desk.events("broken")) == (["broken"], [])


def test_a_job_whose_lease_cannot_be_noted_ends_with_all_that_was_written(desk: Desk) -> None:
    """Somebody has written where the tenant's leases are."""
    attempt = desk.open("job")
    desk.redis.set(desk.ledger.key("leases"), "no index")
    desk.say(attempt, 1, end="stop")
    desk.send()
    assert (desk.lost, desk.ended, desk.in_hand) == ([], ["job"], [])
    assert (desk.result("job").ids, desk.result("job").finish_reason) == ((1,), "stop")


def test_a_large_event_is_repeated_while_redis_is_away(redis: Redis) -> None:
    """What breaks the connection then is not the event."""
    wire = LosesReplies(redis, num_lost=7)
    desk = Desk(redis, wire)  # type: ignore[arg-type]
    attempt = desk.open("job")
    desk.publisher.put([Output(attempt.sequences[0], (Drawn(1),), "x" * 100_000, finish_reason="stop")])
    desk.send()
    assert len(desk.result("job").text) == 100_000


def test_what_has_started_on_record_may_be_computed(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.publisher._entries([Output(attempt.sequences[0], has_started=True)])
    assert desk.started == []
    missed = attempt.stream.after(0, 0)
    assert missed is not None
    desk.publisher._deliver(missed)
    assert desk.started == ["job"]
    desk.publisher._deliver(missed)
    assert desk.started == ["job", "job"], "a reply that was lost is made up for"


def test_what_stands_in_the_ledger_as_anothers_is_never_computed(desk: Desk) -> None:
    attempt = desk.open("job")
    desk.redis.hset(desk.ledger.job_key("job"), "owner", "another")
    desk.start(attempt)
    desk.send()
    assert (desk.started, desk.lost) == ([], ["job"])
