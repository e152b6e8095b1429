"""`herd status`: every queue at a glance, on a narrow terminal too."""

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from uuid import UUID

import pytest
from celery import Celery
from redis import Redis
from rich.console import Console, Group

from llama_herd.cli.status_view import jobs_view, status_view
from llama_herd.errors import UnservedModel
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client import tenant_status
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.client.job_status import JobStatus
from llama_herd.tasks.client.status_texts import duration_text
from llama_herd.tasks.client.tenant_status import QueueStatus, Status
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import TASK_NAME, Envelope
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from tests.cli.herd_command import fork_herd, invoke

LONG = "Llama-3.1-8B-Instruct-Q4_K_M"


def report(redis: Redis, name: str, model: str, **fields: object) -> None:
    plain = {"name": name, "state": "ready", "model": model, "device": "cpu", "slots": 4}
    run_call(redis, Reports().report_worker(WorkerStatus.model_validate(plain | fields)))


@pytest.mark.redis
def test_a_queue_that_nobody_serves_is_shown_with_those_that_are_served(redis: Redis, redis_url: str) -> None:
    report(redis, "a@b", "tales", tokens_per_s=1234.0, ttft_s=0.035, num_failed=2)
    report(redis, "c@d", "tales", state="loading", loaded_percent=40)
    with Client(redis_url) as client:
        client.submit(prompt="a llama")
        with pytest.warns(UnservedModel):
            client.submit(prompt="a llama", model="gpt-4o-mini")
    shown = invoke("status", HERD_REDIS_URL=redis_url).stdout
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line}
    assert rows["tales"][1:3] + rows["tales"][-5:] == ["1", "1", "1,234", "35", "ms", "2", "1+1"]
    assert (rows["gpt-4o-mini"][1], rows["gpt-4o-mini"][-1]) == ("1", "none")
    assert "no worker serves gpt-4o-mini: its jobs wait. Served are: tales" in shown
    assert "c@d is loading 40%" in shown
    found = json.loads(invoke("status", "--json", HERD_REDIS_URL=redis_url).stdout)
    unserved, served = found["queues"]
    assert (unserved["model"], unserved["waiting"], unserved["workers"]) == ("gpt-4o-mini", 1, 0)
    assert (served["tokens_per_s"], served["ttft_s"], served["num_failed"]) == (1234.0, 0.035, 2)
    assert (served["workers"], served["loading"]) == (2, 1)
    only = json.loads(invoke("status", "--json", "--model", "gpt-4o-mini", HERD_REDIS_URL=redis_url).stdout)
    assert ([queue["model"] for queue in only["queues"]], only["workers"]) == (["gpt-4o-mini"], [])


@pytest.mark.redis
def test_a_mistyped_queue_of_bare_messages_is_shown_to_whoever_names_it(redis: Redis, redis_url: str) -> None:
    report(redis, "a@b", "tales")
    with Celery(broker=redis_url) as app:
        sent = app.send_task(TASK_NAME, kwargs={"prompt": "a llama"}, queue="herd.taels")
    shown = invoke("status", sent.id, HERD_REDIS_URL=redis_url)
    assert "no worker has taken its bare message" in shown.stderr
    assert "herd status --model NAME" in shown.stderr
    found = invoke("status", "--model", "taels", HERD_REDIS_URL=redis_url).stdout
    assert "1 message in herd.taels" in found
    assert "no worker serves taels: its jobs wait. Did you mean tales? Served are: tales" in found
    assert "no worker of taels is up" in found


@pytest.mark.redis
def test_workers_of_one_model_with_other_weights_are_named_once(redis: Redis, redis_url: str) -> None:
    """One that loads its model, and one in front of another server, does not tell its own."""
    for name, model, digest in (
        *(("a@b", "tales", "0" * 16), ("c@d", "tales", "1" * 16), ("e@f", "tales", "1" * 16)),
        *(("g@h", "tales", ""), ("i@j", "other", "2" * 16), ("k@l", "other", "2" * 16)),
    ):
        report(redis, name, model, weights_digest=digest)
    shown = " ".join(invoke("status", HERD_REDIS_URL=redis_url).stdout.split())
    assert shown.count("with other weights") == 1
    assert re.search(r"a@b and [ce]@[df] serve tales with other weights each, .* Fix: the same files", shown)
    done = json.loads(invoke("doctor", "--json", HERD_REDIS_URL=redis_url).stdout)
    told = [one["detail"] for one in done["findings"] if one["subject"] == "workers"]
    assert [one[:4] for one in told if "with other weights" in one] == ["a@b "]
    assert "with other weights" not in invoke("status", "--model", "other", HERD_REDIS_URL=redis_url).stdout


@pytest.mark.redis
def test_how_long_a_queue_is_unserved_counts_from_the_last_report(redis: Redis, redis_url: str) -> None:
    report(redis, "a@b", "tales")
    now_s, _ = redis.time()
    redis.delete("herd:default:workers")
    redis.zadd("herd:default:served", {"herd.tales": 1000 * (now_s - 7201)})
    assert invoke("status", "--json", HERD_REDIS_URL=redis_url).stdout.count('"queues":[]') == 1
    with Client(redis_url) as client:
        client.submit(prompt="a llama")
    shown = invoke("status", HERD_REDIS_URL=redis_url).stdout
    assert "no worker serves tales for 2 h 0 m: its jobs wait. Served are: none" in shown


def busy_status() -> Status:
    """One of many digits."""
    served = QueueStatus(
        model=LONG,
        queue=f"herd.{LONG}",
        depth=123_456,
        waiting=123_456,
        delayed=0,
        due=123_456,
        running=1234,
        waiting_tokens=10**9,
        oldest_s=23 * 3600 + 59 * 60,
        taken_per_s=1,
        workers=40,
        loading=8,
        unserved_s=None,
        tokens_per_s=99_999,
        ttft_s=59 * 60 + 59,
        num_ended=10**6,
        num_failed=12_345,
    )
    plain = {"state": "ready", "model": LONG, "device": "cuda:0", "slots": 1024, "running": 1000}
    names = ("gpu0@node-17.cluster.example", "herd-1234567@box")
    figures = {"kv_cache_usage": 1.0, "prefix_hit_rate": 1.0, "tokens_per_s": 99_999.0, "waiting": 1000}
    workers = [WorkerStatus.model_validate({"name": name, **plain, **figures}) for name in names]
    return Status(f"herd.{LONG}", 123_456, 123_456, 1234, workers, [], [served], 1, 2, 3, 900, 1000, 4)


def shown_at(width: int, view: Group) -> str:
    """What a terminal of this width shows; it cuts off nothing."""
    shown = io.StringIO()
    Console(file=shown, width=width, highlight=False, markup=False).print(view)
    assert "…" not in shown.getvalue()
    assert all(len(line) <= width for line in shown.getvalue().splitlines())
    return shown.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_nothing_is_cut_off_at(width: int) -> None:
    shown = shown_at(width, status_view(busy_status()))
    for number in ("123,456", "1,234", "99,999", "23 h 59 m", "59 m 59 s", "12,345", "32+8", "1000/1024"):
        assert number in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_an_id_can_be_copied_at(width: int) -> None:
    job_id = str(UUID(int=7))
    job = JobStatus(
        job_id=job_id,
        state="running",
        note="",
        model=LONG,
        queue=f"herd.{LONG}",
        worker="gpu0@node-17.cluster.example",
        tokens=123_456,
        attempts=1,
        submitted_ms=0,
        due_ms=0,
        deadline_ms=None,
        now_ms=10**12,
        position=12_345,
        estimated_wait_s=3599,
    )
    shown = shown_at(width, jobs_view([job]))
    assert all(figure in shown for figure in (job_id, "12,345", "59 m 59 s", "123,456", "11574 d"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.035, "35 ms"),
        (3.21, "3.2 s"),
        (59.9, "60 s"),
        (61, "1 m 1 s"),
        (7201, "2 h 0 m"),
        (90_000, "1 d 1 h"),
        (10**8, "1157 d"),
    ],
)
def test_a_duration_is_short(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def scaler() -> str:
    """The formula of docs/operate.md, in the language of jq."""
    page = (Path(__file__).parents[2] / "docs/operate.md").read_text(encoding="utf-8")
    (formula,) = re.findall(r"^    herd status --json --model tales \| jq '(.+)'$", page, re.MULTILINE)
    return str(formula)


@pytest.mark.redis
@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq command")
@pytest.mark.filterwarnings("ignore::llama_herd.errors.UnservedModel")
def test_a_scaler_buys_workers_for_what_is_due_for_their_model_alone(redis: Redis, redis_url: str) -> None:
    def wanted() -> int:
        found = invoke("status", "--json", "--model", "tales", HERD_REDIS_URL=redis_url).stdout
        done = subprocess.run(["jq", scaler()], input=found, capture_output=True, text=True, check=True)
        return int(done.stdout)

    def submit(num_jobs: int, model: str, **fields: int) -> None:
        job = GenerationJob.model_validate({"prompt": "a", "model": model, **fields})
        ids = [".".join((model, *fields, f"{number}")) for number in range(num_jobs)]
        envelopes = [Envelope.for_job(job_id, f"herd.{model}") for job_id in ids]
        run_calls(redis, [Ledger().submit(name, job, one) for name, one in zip(ids, envelopes, strict=True)])

    assert wanted() == 1
    submit(300, "nobodys")
    submit(300, "tales", not_before=2**50)
    report(redis, "a@b", "tales")
    assert wanted() == 1
    submit(70, "tales")
    assert wanted() == 3
    for number in range(40):
        redis.rpop("herd.tales")
        run_call(redis, Ledger(worker="a@b").claim(f"tales.{number}", "one"))
    assert wanted() == 3
    redis.lpush("herd.tales", *(f"a bare message {number}" for number in range(40)))
    assert wanted() == 4
    submit(200, "tales", priority=5)
    assert wanted() == 8


@pytest.mark.redis
def test_the_running_jobs_of_a_large_herd_are_estimated(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_status, "MAX_LOOKS", 10)
    job = GenerationJob(prompt="a", model="tales")
    for number in range(40):
        run_call(redis, Ledger().submit(f"{number}", job, Envelope.for_job(f"{number}", "herd.tales")))
        run_call(redis, Ledger(worker="a@b").claim(f"{number}", "one"))
    with Client(redis_url) as client:
        (queue,) = client.status().queues
    assert queue.running == 40


@pytest.mark.redis
@pytest.mark.long
def test_who_watches_goes_on_after_redis_was_away(tmp_path: Path) -> None:
    with EmbeddedRedis(appendonly=True) as server:
        command = fork_herd(tmp_path, "status", "--watch", "--json", HERD_REDIS_URL=server.url)
        with command as watcher:
            assert json.loads(watcher.stdout.readline())["queues"] == []
            server.stop()
            assert "nothing listens there" in watcher.stderr.readline()
            server.start()
            with Redis.from_url(server.url) as redis:
                report(redis, "new", "m")
            while '"new"' not in (line := watcher.stdout.readline()):
                assert line, "it goes on"
            watcher.kill()
