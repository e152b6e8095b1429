"""From a claim to the engine: what is held meanwhile, and what becomes of a job that cannot be made ready."""

import gc
import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from weakref import ref

import pytest
from redis import Redis
from redis.exceptions import ConnectionError
from structlog.testing import capture_logs

from llama_herd.error_code import ErrorCode
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.ledger.answers import Adopt, Yours
from llama_herd.tasks.ledger.held_jobs import EmitEntry, TenantEntry, emit
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, run_call, run_calls
from llama_herd.tasks.ledger.script import Script
from llama_herd.tasks.protocol.events import Started, Token
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker import process
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Lost, NewTokens, SampledToken
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs import service as service_module
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.jobs.tenancy import ClaimedJobs, Tenancy
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import start_service
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.proxy import FaultProxy
from tests.redis_errors import num_errors
from tests.tasks.herd import Herd, started
from tests.tiny import EOS_ID
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import JOB, end_of, the_end

pytestmark = pytest.mark.redis

OTHER = "owner-of-a-larger-vocabulary"

#: A token of a byte, as which it stands in the tiny vocabulary behind the end of a sequence.
FIRST_TOKEN = EmitEntry.from_event(
    Token(seq=2, job="job", epoch=1, i=0, ids=(EOS_ID + 1 + ord("A"),), text="A"), 0
)


@pytest.fixture
def gate(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What runs stays at its first token until this is set."""
    gate, step = threading.Event(), Engine.step

    def held_step(engine: Engine) -> None:
        if any(one.ids for one in engine.scheduler.running):
            gate.wait()
        step(engine)

    monkeypatch.setattr(Engine, "step", held_step)
    yield gate
    gate.set()


def record_id_of_another_vocabulary(
    redis: Redis, ledger: Ledger, model: LoadedModel, job_id: str, token_id: int
) -> None:
    """What a worker leaves behind that served another model by the same name."""
    claimed = run_call(redis, ledger.claim(job_id, OTHER))
    assert isinstance(claimed, Yours)
    stream = EventLog(job_id, claimed, RecordedOutputs.from_events([]), EventAuthor("other@test", "tiny"))
    start = stream.start(1, 3)
    [sequence] = model.maker.sequences(job_id, JOB, now_ms=0)
    stream.add(NewTokens(sequence.info, (SampledToken(token_id),), "another text"))
    entries = [TenantEntry(ledger, entry) for entry in (start, *stream.flush())]
    run_call(redis, emit(OTHER, entries, ledger))
    run_call(redis, ledger.release(job_id, OTHER, claimed.epoch))


def test_what_is_claimed_together_is_held_while_the_first_is_made_ready(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt takes a while to read, and a lease that nobody renews is over by then."""
    job_ids = ["first", "second", "third"]
    held: list[set[str]] = []
    have_come = threading.Event()
    sequences = SequenceMaker.sequences

    def slow(*args: Any) -> Any:
        claims = service.tenancies["default"].claims
        held.append({attempt.job_id for attempt in claims.in_hand()})
        have_come.wait()
        return sequences(*args)

    monkeypatch.setattr(SequenceMaker, "sequences", slow)
    for job_id in job_ids:
        run_call(redis, Ledger().submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
    service.take(SentMessage("first"))
    wait_until(lambda: held, "the first job's turn")
    for job_id in job_ids[1:]:
        service.take(SentMessage(job_id))
    have_come.set()
    for job_id in job_ids:
        wait_until(partial(end_of, redis, Ledger(), job_id), f"the end of {job_id}")
    assert {"second", "third"} <= held[1]


def test_a_full_redis_is_told_once_for_all_claims(redis: Redis, service: Service) -> None:
    job_ids = ["first", "second", "third"]
    for job_id in job_ids:
        run_call(redis, Ledger().submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
    redis.config_resetstat()
    redis.config_set("maxmemory", 1)
    try:
        with capture_logs() as said:
            for job_id in job_ids:
                service.take(SentMessage(job_id))
            wait_until(lambda: num_errors(redis, "OOM") >= 30, "claims are refused")
        assert [line["event"] for line in said] == ["Redis takes no claims, retrying"]
    finally:
        redis.config_set("maxmemory", 0)
    for job_id in job_ids:
        wait_until(partial(end_of, redis, Ledger(), job_id), f"the end of {job_id}")


def test_a_job_on_its_last_attempt_waits_until_it_is_alone(
    redis: Redis, service: Service, tiny_settings: WorkerSettings
) -> None:
    """If it ends its worker again, it takes no other job with it."""
    ledger = Ledger()
    sampling = {"max_tokens": 200, "ignore_eos": True}
    mate = GenerationJob.model_validate({"prompt": "a long tale", "sampling": sampling})
    for job_id, job in (("mate", mate), ("suspect", JOB)):
        run_call(redis, ledger.submit(job_id, job, Envelope.for_job(job_id, "herd.tiny")))
    redis.hset(ledger.job_key("suspect"), "deaths", str(tiny_settings.max_deaths - 1))
    service.take(SentMessage("mate"))
    wait_until(lambda: run_call(redis, ledger.read("mate")), "the mate runs")
    service.take(SentMessage("suspect"))
    wait_until(partial(end_of, redis, ledger, "suspect"), "the end of the suspect")
    assert end_of(redis, ledger, "mate") is not None


def test_a_lost_job_whose_record_others_have_spoilt_is_let_go(
    redis: Redis, service: Service, gate: threading.Event
) -> None:
    """It would be claimed again and again, and keep its place for ever."""
    run_call(redis, Ledger().submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    message, claims = SentMessage("job"), service.tenancies["default"].claims
    service.take(message)
    wait_until(lambda: run_call(redis, Ledger().read("job")), "it runs")
    attempt = claims.get("job")
    assert attempt is not None
    redis.delete(Ledger().job_key("job"))
    redis.set(Ledger().job_key("job"), "somebody else's")
    service._intake.put(attempt)
    wait_until(lambda: message.num_done, "its message is done with")
    assert not claims


def test_a_job_on_record_is_run_whatever_another_message_of_its_id_asks_for(
    redis: Redis, service: Service
) -> None:
    run_call(redis, Ledger().submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job", b'[[], {"colour": "blue"}, {}]'))
    wait_until(partial(end_of, redis, Ledger(), "job"), "the end")
    end = end_of(redis, Ledger(), "job")
    assert end is not None
    assert end.finish_reason == "length"


@pytest.mark.parametrize("token_id", [42, 10**6])
def test_a_job_that_cannot_be_made_ready_ends_alone(
    redis: Redis, service: Service, model: LoadedModel, token_id: int
) -> None:
    ledger = Ledger()
    for job_id in ("broken", "sound"):
        run_call(redis, ledger.submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
    record_id_of_another_vocabulary(redis, ledger, model, "broken", token_id)
    for job_id in ("broken", "sound"):
        service.take(SentMessage(job_id))
        wait_until(partial(end_of, redis, ledger, job_id), f"the end of {job_id}")
    broken, sound = end_of(redis, ledger, "broken"), end_of(redis, ledger, "sound")
    assert broken is not None
    assert broken.error is not None
    assert broken.error.code == ErrorCode.OTHER_VOCABULARY
    assert sound is not None
    assert sound.finish_reason == "length"


def test_a_job_whose_stream_lacks_tokens_that_its_record_counts_ends(redis: Redis, service: Service) -> None:
    """It would go on behind another text than its subscribers have."""
    herd = Herd(redis, Ledger())
    run_call(redis, herd.ledger.submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    herd.claim("job", OTHER)
    assert herd.kinds(OTHER, started("job"), FIRST_TOKEN) == ["ok", "ok"]
    redis.xdel(herd.ledger.events_key("job"), "2-0")
    run_call(redis, herd.ledger.release("job", OTHER, 1))
    service.take(SentMessage("job"))
    end = the_end(redis, "job")
    assert end.error is not None
    assert end.error.code == ErrorCode.UNREADABLE


def test_what_ends_the_thread_that_reads_one_job_ends_that_job_alone(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic of native code is no Exception."""

    class Panic(BaseException):
        """As the bridge to Rust raises it."""

    sequences = SequenceMaker.sequences

    def panic(self: SequenceMaker, job_id: str, *args: Any) -> Any:
        if job_id == "broken":
            raise Panic
        return sequences(self, job_id, *args)

    monkeypatch.setattr(SequenceMaker, "sequences", panic)
    for job_id in ("broken", "sound"):
        run_call(redis, Ledger().submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
        service.take(SentMessage(job_id))
    broken, sound = (the_end(redis, job_id) for job_id in ("broken", "sound"))
    assert broken.error is not None
    assert broken.error.message == "Panic while the job was prepared"
    assert sound.finish_reason == "length"


def test_no_row_is_computed_before_its_start_is_on_record(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward that ends the process at once is counted by that."""
    seen: list[Any] = []
    forward = Llama.forward

    def look(*args: Any) -> Any:
        seen.append(redis.hget(Ledger().job_key("job"), "computing"))
        return forward(*args)

    monkeypatch.setattr(Llama, "forward", look)
    run_call(redis, Ledger().submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job"))
    the_end(redis, "job")
    assert set(seen) == {b"1"}


@pytest.mark.parametrize("reason", ["cancelled", pytest.param("deadline", marks=pytest.mark.long)])
def test_a_job_that_waits_to_be_alone_can_be_ended(
    redis: Redis, service: Service, tiny_settings: WorkerSettings, gate: threading.Event, reason: str
) -> None:
    ledger = Ledger()
    for job_id in ("mate", "suspect"):
        run_call(redis, ledger.submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
    redis.hset(ledger.job_key("suspect"), "deaths", str(tiny_settings.max_deaths - 1))
    service.take(SentMessage("mate"))
    wait_until(lambda: run_call(redis, ledger.read("mate")), "the mate runs")
    if reason == "deadline":
        redis.hset(ledger.job_key("suspect"), "deadline_ms", str(now_ms(redis) + 100))
    service.take(SentMessage("suspect"))
    wait_until(lambda: ledger_state(redis, "suspect") != "queued", "the suspect is claimed")
    if reason == "cancelled":
        run_call(redis, ledger.cancel("suspect"))
    assert the_end(redis, "suspect").finish_reason == reason
    assert run_call(redis, ledger.read("suspect"))[0].type == "end", "it never started"


def now_ms(redis: Redis) -> int:
    seconds, micros = redis.time()
    return 1000 * seconds + micros // 1000


def ledger_state(redis: Redis, job_id: str) -> str | None:
    return run_call(redis, Ledger().state(job_id))


def test_a_message_that_comes_at_the_very_end_does_not_open_the_job_again(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is answered while the job is in hand, and acted on when it has left."""
    ledger, opened = Ledger(), list[str]()
    begin = ClaimedJobs.begin

    def note(self: ClaimedJobs, attempt: Attempt) -> None:
        opened.append(attempt.job_id)
        begin(self, attempt)

    monkeypatch.setattr(ClaimedJobs, "begin", note)
    run_call(redis, ledger.submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job"))
    the_end(redis, "job")
    tenancy = service.tenancies["default"]
    wait_until(lambda: not tenancy.claims, "the job has left")
    stale = Adopt(epoch=1, n=0, seq=1, deaths=0, attempts=1, due_ms=0, body="", now_ms=0)
    service._intake._act(SentMessage("job"), stale)
    assert opened == ["job"]


@pytest.mark.parametrize("num_broken", [1, 2], ids=["read by itself", "claimed again"])
def test_a_stream_that_is_not_read_with_the_claims_is_read_later(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch, num_broken: int
) -> None:
    """Redis is away for a moment, once the claim is answered."""
    herd, broken = Herd(redis, Ledger()), list[RedisCall[Any]]()

    def break_off(connection: Redis, calls: Sequence[RedisCall[Any]]) -> list[Any]:
        reads = [call for call in calls if call.what == Script("read")]
        if reads and len(broken) < num_broken:
            broken.extend(reads)
            raise ConnectionError("it is away")
        return run_calls(connection, calls)

    def break_off_one(connection: Redis, call: RedisCall[Any]) -> Any:
        return break_off(connection, [call])[0]

    monkeypatch.setattr("llama_herd.worker.jobs.intake.run_calls", break_off)
    monkeypatch.setattr("llama_herd.worker.jobs.stream_reader.run_call", break_off_one)
    run_call(redis, herd.ledger.submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    herd.claim("job", OTHER)
    assert herd.kinds(OTHER, started("job"), FIRST_TOKEN) == ["ok", "ok"]
    run_call(redis, herd.ledger.release("job", OTHER, 1))
    service.take(SentMessage("job"))
    assert the_end(redis, "job").finish_reason == "length"
    assert len(broken) == num_broken
    assert [event.type for event in herd.events("job")].count("started") == 2


def test_a_job_that_another_worker_has_is_not_claimed_again_before_its_lease_ends(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    herd, claims, claim = Herd(redis, Ledger()), list[str](), Tenancy.claim

    def count(tenancy: Tenancy, job_id: str, *args: Any) -> Any:
        claims.append(job_id)
        return claim(tenancy, job_id, *args)

    monkeypatch.setattr(Tenancy, "claim", count)
    for job_id in ("busy", "own"):
        run_call(redis, herd.ledger.submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
    herd.claim("busy", OTHER)
    for job_id in ("busy", "own"):
        service.take(SentMessage(job_id))
    the_end(redis, "own")
    assert claims == ["busy", "own"]


def test_a_claim_whose_reply_was_lost_is_made_up_for(redis: Redis, service: Service) -> None:
    ledger, tenancy = Ledger(), service.tenancies["default"]
    run_call(redis, ledger.submit("job", JOB, Envelope.for_job("job", "herd.tiny")))
    assert isinstance(run_call(redis, ledger.claim("job", tenancy.owner)), Yours)
    service.take(SentMessage("job"))
    assert the_end(redis, "job").finish_reason == "length"


@pytest.fixture(params=[1, pytest.param(8, marks=pytest.mark.long), None], ids=["1mb", "8mb", "unset"])
def bulk_mb(redis: Redis, request: pytest.FixtureRequest) -> Iterator[int | None]:
    """The longest argument that Redis takes; None: as it is without a setting."""
    redis.config_set("proto-max-bulk-len", f"{request.param or 512}mb")
    yield request.param
    redis.config_set("proto-max-bulk-len", "512mb")


@pytest.mark.long
def test_a_message_whose_record_redis_cannot_take_ends_alone(
    redis: Redis, service: Service, bulk_mb: int | None
) -> None:
    """Its links are longer than an argument may be."""
    links = [{"task": "x" * 100_000}] * (9 if bulk_mb == 1 else 70)
    body = json.dumps([[], {"prompt": "a tale", "sampling": {"max_tokens": 3}}, {"callbacks": links}])
    run_call(redis, Ledger().submit("mate", JOB, Envelope.for_job("mate", "herd.tiny")))
    message = SentMessage("huge", body.encode())
    message._args[2]["properties"]["delivery_tag"] = "of another client"
    service.take(message)
    service.take(SentMessage("mate"))
    assert the_end(redis, "mate").finish_reason == "length"
    end = the_end(redis, "huge")
    if bulk_mb is None:
        assert end.error is None
    else:
        assert end.error is not None
        assert end.error.code == "invalid_job"
        assert "it breaks the connection" in end.error.message or "bulk length" in end.error.message
        assert len(end.error.message) < 300


def test_of_a_message_whose_claim_is_refused_nothing_stays(redis: Redis, service: Service) -> None:
    """Nor a cycle: messages may be long, and the collector of garbage counts objects, not bytes."""
    gc.disable()
    try:
        redis.set(Ledger().job_key("spoilt"), "somebody else's")
        message = SentMessage("spoilt")
        left = ref(message)
        service.take(message)
        del message
        for job_id in ("next", "last"):  # by then each thread is done with what it had before
            run_call(redis, Ledger().submit(job_id, JOB, Envelope.for_job(job_id, "herd.tiny")))
            service.take(SentMessage(job_id))
            the_end(redis, job_id)
        wait_until(lambda: left() is None, "nothing holds the message")
    finally:
        gc.enable()


@pytest.fixture
def line(redis_server: EmbeddedRedis) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


def test_a_long_message_is_claimed_over_a_line_that_takes_longer_than_a_call_may(
    redis: Redis, tiny_settings: WorkerSettings, line: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other job waits for it from then on."""
    monkeypatch.setattr(process, "device", lambda: "cpu")
    monkeypatch.setattr(service_module, "REDIS_TIMEOUT_S", 0.4)
    service = start_service(
        tiny_settings.model_copy(update={"redis_url": line.url}), "slow@test", WorkerHealth()
    )
    line.bytes_per_s = 150_000
    try:
        body = json.dumps([[], {"prompt": "a tale " * 20_000}, {}])
        message = SentMessage("long", body.encode())
        message._args[2]["properties"]["delivery_tag"] = "of another client"
        service.take(message)
        wait_until(lambda: message.num_done, "the long one is done with")
        assert the_end(redis, "long").finish_reason == "error"  # it is longer than the model's context
    finally:
        service.drain(0.0, lambda: None)


LONG = GenerationJob(prompt="a long tale", sampling=SamplingParams(max_tokens=200, ignore_eos=True))


def lose(redis: Redis, service: Service, gate: threading.Event) -> None:
    """Run a long job until it has tokens, and tell that its engine has lost it."""
    run_call(redis, Ledger().submit("job", LONG, Envelope.for_job("job", "herd.tiny")))
    service.take(SentMessage("job"))
    wait_until(lambda: len(run_call(redis, Ledger().read("job"))) > 1, "it has tokens")
    attempt = service.tenancies["default"].claims.get("job")
    assert attempt is not None
    service._hand_on([Lost(one) for one in attempt.sequences])
    gate.set()


def test_a_job_that_its_engine_has_lost_goes_on_behind_what_is_on_record(
    redis: Redis, service: Service, gate: threading.Event
) -> None:
    lose(redis, service, gate)
    wait_until(partial(end_of, redis, Ledger(), "job"), "its end")
    events = run_call(redis, Ledger().read("job"))
    assert [event.epoch for event in events if isinstance(event, Started)] == [1, 2]
    ids = [token_id for event in events if isinstance(event, Token) for token_id in event.ids]
    assert len(ids) == LONG.sampling.max_tokens
    wait_until(lambda: not service.tenancies["default"].claims, "the job has left")
