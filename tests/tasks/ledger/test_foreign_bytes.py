"""What others write under our keys may be anything: our readers answer, or raise an error of our own tree."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from redis import Redis

from llama_herd.errors import HerdError, InvalidJob, RecordUnreadable
from llama_herd.tasks import AsyncClient, Client
from llama_herd.tasks.client.follower import Follower
from llama_herd.tasks.ledger.answers import DeadLetter, JobRecord
from llama_herd.tasks.ledger.keys import Keys
from tests.cli.herd_command import invoke
from tests.tasks.herd import QUEUE, Herd, end, started, token

pytestmark = pytest.mark.redis

KEYS = Keys()
PLENTY = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))

HEAD: dict[str, Any] = {"v": 1, "seq": 1, "job": "a", "epoch": 1}
EVENT = HEAD | {"type": "token", "i": 0, "ids": [1], "text": "x"}
END = HEAD | {"seq": 2, "type": "end", "final": True, "finish_reason": "stop", "n": 1, "attempts": 1}
ODD_NUMBERS = ["9" * 5000, "-1", "nan", "inf", "1e300", "1.5", "18446744073709551615", "٣", " 7 ", "1_0"]
EVENTS = [
    EVENT,
    EVENT | {"seq": 2},
    EVENT | {"seq": 10**30},
    EVENT | {"job": "b"},
    EVENT | {"logprobs": [None], "top_logprobs": [[[1, None]]]},
    HEAD | {"type": "started", "attempt": 1, "worker": "w", "model": "m", "seed": 7, "at_ms": 1, "n": 0},
    HEAD | {"type": "started", "attempt": 1, "worker": "w", "model": "m", "seed": 7, "at_ms": 1, "n": 10**9},
    END,
]
VALUES = (
    st.binary(max_size=12)
    | st.sampled_from([*ODD_NUMBERS, "", "null", "[]", "{}", "[" * 3000, "\x1b[31m[/b]", "queued", "done"])
    | st.sampled_from(EVENTS).map(json.dumps)
).map(lambda value: value if isinstance(value, bytes) else value.encode())
NAMES = st.binary(min_size=1, max_size=8)


@pytest.fixture(scope="module")
def _nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Somewhere without a .env."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("nowhere"))
        yield


@pytest.fixture
def client(redis_url: str, _nowhere: None) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


def look(client: Client) -> None:
    """Read all that a client reads, and forget the job."""
    acts: list[Callable[[], object]] = [
        lambda: list(client.stream("a", timeout_s=0)),
        lambda: client.result("a", timeout_s=0),
        lambda: client.history("a"),
        client.status,
        client.workers,
        client.batches,
        client.dead,
        lambda: [client.letter(one.number) for one in client.dead() if hasattr(one, "number")],
        lambda: client.cancel("a"),
        lambda: client.retry("a"),
        lambda: client.purge("a"),
        client.purge_ended,
    ]
    for act in acts:
        with suppress(HerdError, TimeoutError):
            act()


def command(client: Client, *arguments: str) -> str:
    """What a command shows; it raises nothing."""
    done = invoke(*arguments, HERD_REDIS_URL=client._core.url)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 2)
    return done.output


def of_fields(names: list[str]) -> Any:
    return st.dictionaries(st.sampled_from(names).map(str.encode) | NAMES, VALUES, min_size=1, max_size=6)


RECORD_FIELDS = [*JobRecord.__slots__, "body", "envelope", "lease", "tokens", "lane"]
REPORT_FIELDS = ["name", "state", "model", "device", "slots", "run_id", "input_name", "elapsed_s", "num_rows"]
LETTER_FIELDS = ["reason", "worker", "queue", "num_bytes", "raw"]


@PLENTY
@given(of_fields(RECORD_FIELDS), st.booleans(), st.booleans())
def test_any_record(client: Client, redis: Any, fields: dict[bytes, bytes], is_ours: bool, ran: bool) -> None:
    redis.flushall()
    if is_ours:
        client.submit(prompt="x", job_id="a")
    redis.hset(KEYS.job_key("a"), mapping=fields)
    if ran:
        redis.xadd(KEYS.events_key("a"), {"e": json.dumps(EVENT)}, "1-0")
    look(client)


@pytest.mark.long
@PLENTY
@given(st.lists(of_fields(["e"]), min_size=1, max_size=3), st.integers(1, 2**64 - 2))
def test_any_stream(client: Client, redis: Any, entries: list[dict[bytes, bytes]], first: int) -> None:
    redis.flushall()
    client.submit(prompt="x", job_id="a")
    for number, fields in enumerate(entries):
        redis.xadd(KEYS.events_key("a"), fields, f"{first}-{number}")
    look(client)
    assert not redis.exists(KEYS.events_key("a"))
    command(client, "watch", "a")


@pytest.mark.long
@PLENTY
@given(of_fields(LETTER_FIELDS), st.integers(1, 2**64 - 1))
def test_any_dead_letter(client: Client, redis: Any, fields: dict[bytes, bytes], first: int) -> None:
    redis.flushall()
    redis.xadd(KEYS.key("dead"), fields, f"{first}-5")
    (letter,) = client.dead()
    assert client.letter(letter.number) == letter  # type: ignore[union-attr]
    look(client)
    for arguments in (("list",), ("list", "--json"), ("show", f"{first}-5", "--prompt")):
        command(client, "dead", *arguments)
    command(client, "dead", "retry", f"{first}-5")
    if redis.xlen(KEYS.key("dead")):
        assert command(client, "dead", "drop", f"{first}-5") == "dropped\n"


@pytest.mark.long
@PLENTY
@given(
    st.dictionaries(NAMES, st.floats(allow_nan=False), min_size=1, max_size=3),
    of_fields(["worker", "queue", "attempts", "body", "state"]),
)
def test_any_quarantine(
    client: Client, redis: Any, names: dict[bytes, float], fields: dict[bytes, bytes]
) -> None:
    redis.flushall()
    for name in names:
        redis.hset(b"herd:default:{" + name + b"}:job", mapping=fields | {b"queue": b"\xff"})
    redis.zadd(KEYS.key("quarantine"), names)
    assert len(client.dead()) == len(names)
    look(client)
    command(client, "dead", "list")
    command(client, "dead", "list", "--json")


@pytest.mark.long
@PLENTY
@given(of_fields(REPORT_FIELDS))
def test_any_report(client: Client, redis: Any, fields: dict[bytes, bytes]) -> None:
    redis.flushall()
    for kind, index in (("worker", "workers"), ("batch", "batches")):
        redis.hset(KEYS.key(f"{kind}:x"), mapping=fields)
        redis.zadd(KEYS.key(index), {"x": 2**52})
    look(client)
    for arguments in (("status",), ("status", "--json")):
        command(client, *arguments)


@pytest.mark.parametrize("odd", ["[/b]", "[red]", "\x1b[31m"])
def test_a_report_that_would_paint_the_terminal_is_shown_as_it_is(
    client: Client, redis: Redis, odd: str
) -> None:
    worker = {"name": odd, "state": odd, "model": odd, "device": odd, "slots": "4"}
    redis.hset(KEYS.key("worker:x"), mapping=worker)  # type: ignore[arg-type]
    redis.zadd(KEYS.key("workers"), {"x": 1000 * int(redis.time()[0]) + 9_000})
    assert odd.replace("\x1b", "") in command(client, "status")


@pytest.mark.long
@PLENTY
@given(VALUES, NAMES)
def test_any_message(client: Client, redis: Any, message: bytes, name: bytes) -> None:
    redis.flushall()
    redis.lpush(QUEUE, message)
    redis.hset(KEYS.unacked_key, name, message)
    client.submit(prompt="x", job_id="a")
    redis.set(b"herd:default:{" + name + b"}:job:no", message)
    redis.hset(b"herd:default:{" + name + b"}:job", name, message)
    client.purge("a")
    client.purge_ended()
    assert "jobs purged" in command(client, "purge", "--all-ended")


@PLENTY
@given(st.lists(VALUES, max_size=5))
def test_any_message_on_a_jobs_channel(messages: list[bytes]) -> None:
    """Every producer of the tenant may publish there."""
    follower = Follower("a")
    for data in messages:
        heard = follower.heard([data])
        assert [event.job for event in heard] in ([], ["a"])
        assert not heard or heard[0].seq == follower.last


FOREIGN = [b"", b"\xff", b"null", b"{}", json.dumps(END | {"job": "b"}).encode(), b"9" * 5000]


def test_what_is_no_event_of_the_job_neither_ends_its_stream_nor_moves_it(client: Client, herd: Herd) -> None:
    client.submit(prompt="x", job_id="a")
    herd.claim("a")
    herd.emit("one", started("a"))
    channel = herd.ledger.channel("a")
    stream = client.stream("a", timeout_s=20)
    assert next(stream).seq == 1
    seqs: list[int] = []
    reader = Thread(target=lambda: seqs.extend(event.seq for event in stream), daemon=True)
    reader.start()
    herd.wait_for_listener("a")
    for data in FOREIGN:
        herd.redis.publish(channel, data)
    herd.emit("one", token("a", 2, 0))
    for data in FOREIGN:
        herd.redis.publish(channel, data)
    herd.emit("one", end("a", 3, 1))
    reader.join(20)
    assert seqs == [2, 3]


def test_the_asyncio_client_passes_over_what_is_no_event(client: Client, herd: Herd, redis_url: str) -> None:
    async def talk() -> list[int]:
        async with AsyncClient(redis_url) as other:
            seqs = []
            async for event in other.stream("a", timeout_s=20):
                seqs.append(event.seq)
                if event.seq == 1:
                    shout.start()
            return seqs

    def speak() -> None:
        herd.wait_for_listener("a")
        for data in FOREIGN:
            herd.redis.publish(herd.ledger.channel("a"), data)
        herd.emit("one", token("a", 2, 0), end("a", 3, 1))

    shout = Thread(target=speak, daemon=True)
    client.submit(prompt="x", job_id="a")
    herd.claim("a")
    herd.emit("one", started("a"))
    assert asyncio.run(talk()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"e": "{}"}, "cannot be read"),
        ({"x": "{}"}, "cannot be read"),
        ({"e": json.dumps(EVENT | {"job": "b"})}, "an event of another job"),
        ({"e": json.dumps(EVENT | {"seq": 5})}, "lacks the event after 0"),
    ],
)
def test_a_stream_that_another_has_written_is_one_clear_error(
    client: Client, redis: Redis, fields: Any, said: str
) -> None:
    client.submit(prompt="x", job_id="a")
    redis.xadd(KEYS.events_key("a"), fields, "1-0")
    for read in (lambda: client.result("a"), lambda: list(client.stream("a"))):
        with pytest.raises(RecordUnreadable, match=said):
            read()
    note, shown = command(client, "watch", "a").splitlines()
    assert note.startswith("herd: job a: no worker serves tales")
    assert shown.startswith("herd: ")
    assert command(client, "purge", "a") == "purged\n"
    assert not redis.exists(KEYS.events_key("a"))


@pytest.mark.long
def test_a_job_that_is_over_and_lost_its_end_is_one_clear_error(client: Client, herd: Herd) -> None:
    client.submit(prompt="x", job_id="a")
    herd.claim("a")
    herd.emit("one", started("a"), token("a", 2, 0), end("a", 3, 1))
    herd.redis.xdel(KEYS.events_key("a"), "3-0")
    with pytest.raises(RecordUnreadable, match="has no end"):
        client.result("a")
    herd.redis.delete(KEYS.events_key("a"))
    with pytest.raises(RecordUnreadable, match="has no end"):
        client.result("a", timeout_s=0)


def test_a_letter_of_another_version_is_listed_with_what_is_known_of_it(client: Client, redis: Redis) -> None:
    number = redis.xadd(KEYS.key("dead"), {"reason": "new", "raw": "hi", "trace": "x"}, "7-1")
    assert number == b"7-1"
    assert client.dead() == [DeadLetter("7-1", 7, "new", "", "", b"hi", 0)]
    with pytest.raises(InvalidJob, match="7-1"):
        client.retry("7-1")
    client.drop("7-1")
    assert client.dead() == []


@pytest.mark.parametrize("queue", ["herd.acme:tales", "herd:default:leases", ""])
def test_a_letter_that_names_a_foreign_queue_is_not_pushed_there(
    client: Client, redis: Redis, queue: str
) -> None:
    redis.xadd(KEYS.key("dead"), {"queue": queue, "raw": "hi", "num_bytes": 2}, "7-1")
    with pytest.raises(InvalidJob, match="did not come from a queue of this tenant"):
        client.retry("7-1")
    assert redis.keys() == [KEYS.key("dead").encode()]


def test_a_broken_record_is_purged_and_waits_no_more(client: Client, redis: Redis) -> None:
    broken = [("running", "lease"), ("queued", "seq"), ("queued", "queue"), ("queued", "tokens")]
    for number, (state, field) in enumerate(broken):
        name = f"job-{number}"
        client.submit(prompt="x", job_id=name)
        redis.hset(KEYS.job_key(name), mapping={"state": state, "owner": "o", field: "x"})
        client.purge(name)
        assert redis.hgetall(KEYS.job_key(name)) == {b"state": b"purged"}
    assert redis.zcard(KEYS.key("pending")) == 0
