"""`herd dead` and `herd purge`: what they show, and what they show only when asked."""

import io
import json
from uuid import UUID

import pytest
from redis import Redis
from rich.console import Console

from llama_herd.cli.dead import dead_view
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import DeadLetter
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.priority import URGENT
from tests.cli.herd_command import invoke
from tests.tasks.herd import QUEUE, Herd
from tests.tasks.ledger.test_dead_letters import poison

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("away")]

PROMPT = "canary-of-the-prompt"
NASTY = "bad \x1b[31mreason"


@pytest.fixture
def number(redis: Redis) -> str:
    """A job that was given up, and a message that was put aside, by its number."""
    poison(Herd(redis, Ledger(lease_ms=60_000, worker="gpu0")), "job-1", GenerationJob(prompt=PROMPT))
    redis.delete(QUEUE)
    redis.zincrby("herd:default:quarantine", -1000, "job-1")
    letters = DeadLetters()
    run_call(redis, letters.bury(PROMPT.encode(), queue=QUEUE, reason=NASTY, worker="gpu1"))
    (letter,) = run_call(redis, letters.letters())
    return letter.number


def herd(redis_url: str, *arguments: str, code: int = 0, **environment: str) -> str:
    done = invoke(*arguments, HERD_REDIS_URL=redis_url, **environment)
    assert done.exit_code == code, done.output
    return done.output


def test_the_list_names_both_with_reason_attempts_and_worker_and_no_prompt(
    redis_url: str, number: str
) -> None:
    shown = herd(redis_url, "dead", "list")
    message, job = shown.splitlines()[1:]
    assert message.split()[:2] == [number, "message"]
    assert "bad [31mreason" in message
    assert job.split()[:2] == ["job-1", "job"]
    assert job.split()[-4:] == ["poisoned", "3", "gpu0", QUEUE]
    assert PROMPT not in shown
    as_json = json.loads(herd(redis_url, "dead", "list", "--json"))
    assert [(one["kind"], one["id"]) for one in as_json] == [("message", number), ("job", "job-1")]
    assert PROMPT not in str(as_json)


@pytest.fixture
def sent(redis: Redis) -> DeadLetter:
    """A message of Celery's that was put aside."""
    head = {"id": str(UUID(int=7)), "task": "shop.tasks.describe", "origin": "gen12@shop-7f9c"}
    raw = json.dumps({"headers": {**head, "kwargsrepr": PROMPT}}).encode()
    reason = "unknown task shop.tasks.describe"
    run_call(redis, DeadLetters().bury(raw, queue=QUEUE, reason=reason, worker="gpu1@node-17.cluster"))
    return run_call(redis, DeadLetters().letters())[0]


def test_a_letter_says_who_sent_it_and_who_put_it_aside(redis_url: str, sent: DeadLetter) -> None:
    (listed,) = json.loads(herd(redis_url, "dead", "list", "--json"))
    assert listed == json.loads(herd(redis_url, "dead", "show", sent.number))
    names = ("task_id", "task", "origin", "worker")
    told = [str(UUID(int=7)), "shop.tasks.describe", "gen12@shop-7f9c", "gpu1@node-17.cluster"]
    assert [listed[name] for name in names] == told
    assert PROMPT not in str(listed)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_cuts_nothing_off_at(width: int, sent: DeadLetter) -> None:
    shown = io.StringIO()
    Console(file=shown, width=width, highlight=False, markup=False).print(dead_view([sent]))
    words = "".join(shown.getvalue().split())
    for name in ("number", "reason", "worker", "queue", "task", "task_id", "origin"):
        assert "".join(getattr(sent, name).split()) in words


def test_show_tells_the_prompt_only_when_asked(redis_url: str, number: str) -> None:
    for name in ("job-1", number):
        assert PROMPT not in herd(redis_url, "dead", "show", name)
        assert PROMPT in herd(redis_url, "dead", "show", name, "--prompt")
    shown = json.loads(herd(redis_url, "dead", "show", "job-1"))
    assert (shown["record"]["state"], shown["record"]["worker"]) == ("failed", "gpu0")
    assert [event["type"] for event in shown["events"]] == ["started"] * 3 + ["end"]
    assert "no job zz" in herd(redis_url, "dead", "show", "zz", code=2)


def test_a_retry_prints_the_new_id_or_the_queue(redis_url: str, redis: Redis, number: str) -> None:
    new_id = herd(redis_url, "dead", "retry", "job-1").strip()
    assert redis.exists(Ledger().job_key(new_id))
    assert herd(redis_url, "dead", "retry", number) == f"pushed back to {QUEUE}\n"
    assert redis.llen(QUEUE) == 2
    assert herd(redis_url, "dead", "list") == "no poisoned jobs and no dead letters\n"
    assert herd(redis_url, "dead", "retry", "job-1").strip() == new_id
    assert "no dead letter has the id job-2" in herd(redis_url, "dead", "retry", "job-2", code=2)


def test_the_dead_can_be_dropped(redis_url: str, number: str) -> None:
    for name in (number, "job-1"):
        assert herd(redis_url, "dead", "drop", name) == "dropped\n"
    assert json.loads(herd(redis_url, "dead", "list", "--json")) == []


def test_a_job_or_all_that_are_over_are_purged(redis_url: str) -> None:
    with Client(redis_url) as client:
        for name in "abc":
            client.submit(prompt=PROMPT, job_id=name)
        client.cancel("b")
        client.cancel("c")
    assert herd(redis_url, "purge", "a") == "purged\n"
    assert herd(redis_url, "purge", "--all-ended") == "2 jobs purged\n"
    assert "no job zz" in herd(redis_url, "purge", "zz", code=2)
    for arguments in ((), ("a", "--all-ended")):
        assert "either the id of a job or --all-ended" in herd(redis_url, "purge", *arguments, code=2)


def test_generate_passes_priority_and_key_on(redis_url: str, redis: Redis) -> None:
    with Client(redis_url) as client:
        fields = {"prompt": "x", "priority": 7, "not_before": 5}
        job_id = client.submit(idempotency_key="order-17", **fields)  # type: ignore[arg-type]
        client.cancel(job_id)
    options = ("--priority", "7", "--not-before", "5", "--idempotency-key", "order-17", "--json")
    (result,) = (
        line for line in herd(redis_url, "generate", "x", *options, code=1).splitlines() if line[0] == "{"
    )
    assert json.loads(result)["job"] == job_id
    assert redis.llen(f"{QUEUE}{URGENT}") == 1


def test_generate_tells_of_a_full_queue_and_of_a_key_that_names_another_job(redis_url: str) -> None:
    with Client(redis_url) as client:
        client.submit(prompt="x", idempotency_key="order-17")
    shown = herd(redis_url, "generate", "y", "--idempotency-key", "order-17", code=2)
    assert "idempotency_key: another job already has it" in shown
    shown = herd(redis_url, "generate", "y", code=2, HERD_MAX_QUEUE="1")
    assert "1 jobs wait in herd.tales, and the limit is 1. Fix: submit again in 60 s" in shown


def test_generate_refuses_in_this_process_what_needs_the_queue(redis_url: str) -> None:
    for option in ("--not-before", "--idempotency-key"):
        shown = herd(redis_url, "generate", "x", "--local", option, "5", code=2)
        assert "need the queue" in shown
