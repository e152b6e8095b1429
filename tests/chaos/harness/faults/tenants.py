"""A tenant does to its own keys whatever Redis lets a producer do; the jobs of another tenant go on."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.tasks.protocol.priority import LANES
from llama_herd.tasks.security.acl import Acl, Role
from tests.chaos.harness.herd import STEP_S, Herd
from tests.chaos.harness.patience import wait_until

TENANT = "mischief"

#: Its jobs and its commands per strike; the first commands are odd submissions.
NUM_JOBS, NUM_COMMANDS, NUM_SUBMISSIONS = 8, 600, 60
SAMPLING: SamplingFields = {"max_tokens": 40, "temperature": 0.8, "seed": 5}

#: The values that it writes.
VALUES: tuple[str, ...] = (
    *(
        "",
        "x",
        "-1",
        "0",
        "1e308",
        "nan",
        "9" * 16,
        str(2**63 - 1),
        "9" * 40,
        "running",
        "done",
        "herd.tales",
    ),
    *("{}", "[]", "null", '{"v":1}', "\ud7ff", "@tag@", "x" * 10_000),
)
FIELDS: tuple[str, ...] = (
    *(
        "state",
        "owner",
        "lease",
        "epoch",
        "seq",
        "n",
        "deaths",
        "attempts",
        "queue",
        "lane",
        "body",
        "envelope",
    ),
    *("tokens", "due_ms", "deadline_ms", "cancel", "preparing", "pushes", "waits", "started_ms"),
)


@contextmanager
def mischief(herd: Herd) -> Iterator[list[str]]:
    """A worker that serves both tenants joins the others; its jobs of the other tenant must go on."""
    tenants = f"{TENANT},{herd.settings.tenants or herd.settings.tenant}"
    with _keys_deleted_after(herd), herd.guest(step_s=STEP_S, tenants=tenants) as guest:
        wait_until(lambda: herd.jobs.running(guest.name), f"{guest.name} at work")
        job_ids = _submit_jobs(herd)
        met = herd.jobs.running(guest.name)
        with _producer_connection(herd) as redis:
            for number in range(NUM_COMMANDS):
                is_submission = number < NUM_SUBMISSIONS
                with suppress(RedisError):  # commands that are forbidden or fail
                    command = _odd_submission(herd) if is_submission else _odd_command(herd, job_ids)
                    redis.execute_command(*command)
        (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
        yield [*met, job_id]
        herd.jobs.results([*met, job_id])


def _submit_jobs(herd: Herd) -> list[str]:
    """Jobs of its own, so that there is something to break."""
    settings = herd.settings.model_copy(update={"tenant": TENANT, "tenants": ""})
    with Client(settings=settings, model=settings.served_model) as client:
        return [client.submit(prompt=f"tale {n}", sampling=SAMPLING) for n in range(NUM_JOBS)]


@contextmanager
def _producer_connection(herd: Herd) -> Iterator[Any]:
    """A connection with the rights of a producer in this tenant, and with no others."""
    rights = Acl(TENANT, [_queue(herd)]).rights(Role.PRODUCER)
    rules = [f"~{key}" for key in rights.keys] + [f"&{channel}" for channel in rights.channels]
    rules += ["-@all", *(f"+{command.lower()}" for command in rights.commands)]
    herd.jobs.redis.execute_command(
        "ACL", "SETUSER", TENANT, "reset", "resetchannels", "on", f">{TENANT}", *rules
    )
    try:
        with Redis(port=herd.server.port, username=TENANT, password=TENANT) as redis:
            yield redis
    finally:
        herd.jobs.redis.acl_deluser(TENANT)


@contextmanager
def _keys_deleted_after(herd: Herd) -> Iterator[None]:
    """Delete all keys of this tenant after the block."""
    try:
        yield
    finally:
        keys = [key for name in (f"herd.{TENANT}:*", f"*{TENANT}*") for key in herd.jobs.redis.keys(name)]
        if keys:
            herd.jobs.redis.delete(*keys)


def _queue(herd: Herd) -> str:
    return queue_name(herd.settings.served_model, TENANT)


def _odd_command(herd: Herd, job_ids: list[str]) -> tuple[Any, ...]:
    """A command that a producer's role allows, with odd arguments."""
    rng, ledger, queue = herd.rng, Ledger(TENANT), _queue(herd)
    job_id, value = rng.choice(job_ids), rng.choice(VALUES)
    lists = [f"{queue}{lane}" for lane in LANES]
    names = [
        *("pending", "pending:deadlines", *(f"pending:{name}" for name in lists), "delayed", "leases"),
        *("waiting", "sweep", "dead", "workers", "quarantine", f"room:{queue}"),
    ]
    of_job = [ledger.job_key(job_id), ledger.events_key(job_id)]
    key = rng.choice([rng.choice(lists), rng.choice(of_job), ledger.key(rng.choice(names))])
    match rng.randrange(8):
        case 0:
            return ("SADD", key, value)
        case 1:
            return ("LPUSH", key, value)
        case 2:
            return ("HSET", key, rng.choice([*FIELDS, f"{queue}:jobs", f"{queue}:since"]), value)
        case 3:
            return (
                "ZADD",
                key,
                rng.choice(["-inf", "inf", "0", "1e308", "9" * 16]),
                rng.choice([job_id, value]),
            )
        case 4:
            return (rng.choice(["ZREM", "HDEL"]), key, rng.choice([job_id, *FIELDS]))
        case 5:
            return ("XADD", key, rng.choice(["*", "999999-0"]), rng.choice(["e", "x"]), value)
        case 6:
            owner = str((herd.jobs.redis.hget(ledger.job_key(job_id), "owner") or b"").decode())
            return ("PUBLISH", ledger.notices_to(owner), rng.choice([value, f'{{"v":1,"job":"{job_id}"}}']))
        case _:
            return ("EXPIRE", key, rng.choice(["0", "1", "99999"]))


def _odd_submission(herd: Herd) -> tuple[Any, ...]:
    """The script that submits, with one argument that our client would not send."""
    job_id, queue = f"odd-{herd.rng.getrandbits(32)}", _queue(herd)
    call: RedisCall[Any] = Ledger(TENANT).submit(
        job_id, GenerationJob(prompt="a tale"), Envelope.for_job(job_id, queue)
    )
    args = list(call.args)
    args[herd.rng.randrange(len(args))] = herd.rng.choice(VALUES)
    return ("EVALSHA", getattr(call.what, "sha", ""), len(call.keys), *call.keys, *args)
