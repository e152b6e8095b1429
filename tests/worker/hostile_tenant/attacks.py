"""What a tenant may do to its own keys, by the commands of its users."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.message import TAG_GAP, Envelope, queue_name
from llama_herd.tasks.protocol.priority import LANES
from llama_herd.tasks.security.acl import Role

#: The tenant that does it.
GLOBEX = "globex"
QUEUE, KEYS = queue_name("m", GLOBEX), Keys(GLOBEX)
SHORT: SamplingFields = {"max_tokens": 8}

Command = tuple[Any, ...]


@dataclass(frozen=True)
class Attack:
    """Commands of a tenant's user, and who that is."""

    name: str
    commands: Iterable[Command]
    role: Role = Role.PRODUCER


@dataclass(frozen=True)
class LongStream:
    """Events that look like ours, but for their length, and the record of their job; made anew each time."""

    num_events: int
    state: str

    def __iter__(self) -> Iterator[Command]:
        text = "x" * (STREAM_BYTES // self.num_events)
        for seq in range(1, self.num_events + 1):
            yield _event("f", seq, type="token", i=seq - 1, ids=[1], text=text)
        yield from _forged("f", seq=self.num_events, n=self.num_events, state=self.state)


def _of_another_type() -> Iterator[Attack]:
    """Each key that a producer may write to, as what it is not."""
    lists = [QUEUE + lane for lane in LANES]
    ledger = [KEYS.key(name) for name in ("pending", "delayed", "leases", "waiting", "served", "ended")]
    ledger += [KEYS.key(name) for name in ("failed", "untold", "kept", "outbox", "outbox:entries", "webhook")]
    ledger += [KEYS.key(f"pending:{name}") for name in (QUEUE, "deadlines")]
    bindings = [f"_kombu.binding{kind}.{QUEUE}" for kind in ("", "_permanent")]
    for key in lists + bindings + ledger:
        yield Attack(f"{key!r} is a stream", [("XADD", key, "*", "x", "x")])
        yield Attack(f"{key!r} is a hash", [("HSET", key, "x", "x")])
    for key in lists + ledger:
        yield Attack(f"{key!r} is a set", [("SADD", key, "x")])
    for key in bindings + ledger:
        yield Attack(f"{key!r} is a list", [("LPUSH", key, "x")])
    for key in lists:
        yield Attack(f"{key!r} is a string", [("SET", key, "x")], Role.WORKER)


def _forged(job_id: str, **fields: Any) -> list[Command]:
    """A job whose record nobody has checked."""
    job = {"v": 1, "prompt": "a", "tenant": GLOBEX, "sampling": SHORT}
    envelope = Envelope.for_job(job_id, QUEUE)
    record = {
        "state": "queued", "body": json.dumps(job), "queue": QUEUE, "lane": "", "envelope": envelope.text,
        "tokens": 9, "submitted_ms": 1, "due_ms": 1, "epoch": 0, "seq": 0, "n": 0, "lease": 0,
        "deaths": 0, "attempts": 0, "pushes": 0, "waits": 0,
    } | fields  # fmt: skip
    pairs = [part for pair in record.items() for part in pair]
    message = envelope.with_tag(f"{job_id}:1:1")
    return [("HSET", KEYS.job_key(job_id), *pairs), ("LPUSH", QUEUE, message)]


#: Forged jobs at once, far more than a worker takes of one tenant.
NUM_FORGED = 60


def _forgeries(**fields: Any) -> list[Command]:
    return [command for number in range(NUM_FORGED) for command in _forged(f"f{number}", **fields)]


def _event(job_id: str, seq: int, **fields: Any) -> Command:
    event = {"v": 1, "seq": seq, "job": job_id, "epoch": 1, **fields}
    return ("XADD", KEYS.events_key(job_id), f"{seq}-0", "e", json.dumps(event))


#: The time in `leases` says that no sweep has given the owner up.
FOREIGN = Attack(
    "jobs of an owner who never ends",
    [
        *(("ZADD", KEYS.key("leases"), 9 * 10**15, f"f{number}") for number in range(NUM_FORGED)),
        *_forgeries(state="running", owner="x", lease=9 * 10**15),
    ],
)
FORGERIES = [
    Attack("jobs that no claim can read", _forgeries(due_ms="soon")),
    FOREIGN,
    Attack("a job that has been due for ever", _forged("f", due_ms=-(10**300))),
    Attack(
        "ended jobs that have been kept for ever",
        [("HSET", KEYS.key("kept"), "from", "-inf"), *_forged("f", deadline_ms=1)],
    ),
    Attack("a job of fewer than no tokens", _forged("f", n=-1)),
    Attack("a job of fewer than no starts", _forged("f", attempts=-2)),
    Attack(
        "a token that no vocabulary has",
        [
            _event("f", 1, type="token", i=0, ids=[-1], text=""),
            *_forged("f", seq=1, n=1),
        ],
    ),
    Attack(
        "a result of a billion outputs",
        [
            _event("f", 1, type="started", attempt=1, worker="w", model="m", seed=1, n=10**9),
            _event("f", 2, type="end", finish_reason="stop", n=0, attempts=1),
            *_forged("f", seq=2, state="done"),
        ],
    ),
]

#: What a sweep finds and looks at: a message that Redis pushes, and no reader of JSON follows so deep.
NESTED = Attack(
    "a dead worker's job with a bottomless message",
    [
        _forged("f", state="running", owner="x", envelope="[" * 9_999 + TAG_GAP)[0],
        ("ZADD", KEYS.key("leases"), 0, "f"),
    ],
)


def task_message(name: str, task_id: str) -> bytes:
    """A message of a task that is no job."""
    raw = json.loads(Envelope.for_job(task_id, QUEUE).with_tag(task_id))
    raw["headers"]["task"] = name
    return json.dumps(raw).encode()


#: Bytes of a forged stream; each event of it has as many as one of our own may have, or all.
STREAM_BYTES, EVENT_BYTES = 100_000_000, 1_000_000

#: Of a job that is to be gone on with, and of one whose result is to be stored.
LONG_STREAMS = [
    Attack(f"{num} events are 100 MB of a {state} job", LongStream(num, state))
    for num in (1, STREAM_BYTES // EVENT_BYTES)
    for state in ("queued", "done")
]

FLOODS = [
    Attack("a flood of junk", [("LPUSH", QUEUE, *["x"] * 500)]),
    Attack("messages of megabytes", [("LPUSH", QUEUE, "x" * 4_000_000)] * 5),
    Attack("notices that are none", [("PUBLISH", KEYS.notices_to("0f3c"), "x" * 100_000)] * 50),
    Attack("many names", [("ZADD", KEYS.key("leases"), *[part for n in range(9999) for part in (n, n)])]),
]

ATTACKS = [*_of_another_type(), *FORGERIES, *FLOODS, *LONG_STREAMS]
#: Another draw at another time would not be the same test.
SAMPLE = [*random.Random(7).sample([*_of_another_type()], 8), *FORGERIES, *FLOODS]
