"""No prompt and no password is shown by logs, events, arguments of processes or a status, come what may."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from llama_herd.tasks.app import make_app
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import TASK_NAME, Envelope, queue_name
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until
from tests.cli.herd_command import invoke
from tests.guarded_redis import GuardedRedis, write_users
from tests.local.tended_worker import TendedWorker
from tests.tasks.herd import Herd, started
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker]

CANARY = "canary-4711"
PASSWORD = f"password-{CANARY}"
QUEUE = queue_name("m")

JOB: dict[str, Any] = {
    "prompt": f"a {CANARY}",
    "sampling": {"max_tokens": 3, "stop": [f"s{CANARY}"]},
    "metadata": {"note": CANARY},
}
#: Renders users' words, and fails on others with the words in its complaint.
TEMPLATE = """{% for m in messages %}{% if m.role != "user" %}{{ raise_exception(m.content) }}{% endif %}
{{ m.content }}{% endfor %}"""
CHAT: dict[str, Any] = JOB | {"prompt": None, "messages": [{"role": "user", "content": f"a {CANARY}"}]}
FORM: dict[str, Any] = JOB | {"structured_outputs": {"regex": f"[a-z ]{{9}}{CANARY}"}}
WRONG: dict[str, Any] = {
    "unknown field": JOB | {CANARY: CANARY},
    "wrong type": JOB | {"sampling": {"temperature": CANARY}},
    "too long": JOB | {"prompt": f"a {CANARY}" * 1000},
    "two prompts": JOB | {"messages": [{"role": "user", "content": CANARY}]},
    "no expression": JOB | {"structured_outputs": {"regex": f"{CANARY}("}},
    "not supported": JOB | {"structured_outputs": {"json": {"properties": {CANARY: {"if": {}}}}}},
    "refused by the template": CHAT | {"messages": [{"role": CANARY, "content": CANARY}]},
}

GOOD = (JOB, CHAT, FORM)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GuardedRedis]:
    acl = Acl("default", [QUEUE])
    for role in Role:
        (tmp_path / f"{role}.password").write_text(PASSWORD)
    write_users(tmp_path, {str(role): acl.rights(role) for role in Role})
    with GuardedRedis(tmp_path) as server:
        yield server


@pytest.fixture
def worker(server: GuardedRedis, tiny_settings: WorkerSettings, tmp_path: Path) -> Iterator[TendedWorker]:
    model = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=TEMPLATE, eos=False)
    own = {"redis_url": server.url_of("worker"), "model": model, "model_name": "m", "log_level": "debug"}
    settings = WorkerSettings.read(**tiny_settings.model_dump() | own)
    loud = {
        "CELERY_WORKER_TASK_EVENTS": "1",
        "STANDSTILL": str(tmp_path),
    }
    with TendedWorker(
        settings, "loud@test", tmp_path / "log", include="tests.worker.standstill", env=loud
    ) as worker:
        yield worker


def give_up(root: Redis) -> None:
    """A job that three workers have died of; its message comes to the one that lives."""
    herd = Herd(root, Ledger())
    elsewhere = Envelope.for_job("poison", queue_name("elsewhere"))
    run_call(root, herd.ledger.submit("poison", GenerationJob.model_validate(JOB), elsewhere))
    for number in range(1, 4):
        claimed = herd.claimed("poison")
        assert herd.kinds("one", started("poison", number, claimed.epoch)) == ["ok"]
        herd.pass_lease("poison")
    root.lpush(QUEUE, Envelope.for_job("poison", QUEUE).with_tag("poison"))


def arguments_of(worker: TendedWorker) -> str:
    """Those of the worker and of its helpers."""
    process = psutil.Process(worker.process.pid)
    return str([one.cmdline() for one in (process, *process.children(recursive=True))])


def events_of_celery(channel: Any) -> list[dict[str, Any]]:
    found = []
    while (message := channel.get_message(timeout=0.5)) is not None:
        event = json.loads(message["data"])  # a message of Celery's, which may hold several
        body = json.loads(base64.b64decode(event["body"]))
        found += body if isinstance(body, list) else [body]
    return found


@pytest.mark.program
def test_no_prompt_and_no_password_is_shown_by_anything(
    worker: TendedWorker, server: GuardedRedis, tmp_path: Path
) -> None:
    settings = Settings.read(redis_url=server.url_of("operator"), model_name="m")
    root = Redis.from_url(server.url)
    channel = root.pubsub()  # type: ignore[no-untyped-call]
    channel.psubscribe("/0.herd:default:celeryev/*")
    assert channel.get_message(timeout=20)["type"] == "psubscribe"

    with Client(server.url, model="m") as client, make_app(Settings.read(redis_url=server.url)) as app:
        reasons = [client.result(client.submit(**job), timeout_s=30).finish_reason for job in GOOD]
        for fields in (*GOOD, *WRONG.values()):
            sent = app.send_task(TASK_NAME, kwargs=fields, queue=QUEUE)
            reasons.append(client.result(sent.id, timeout_s=30).finish_reason)
        assert reasons == [*["length"] * 2 * len(GOOD), *["error"] * len(WRONG)]
        give_up(root)
        error = client.result("poison", timeout_s=30).error
        assert error is not None
        assert error.code == "poisoned"
        for name in ("no.such.task", TASK_NAME):
            app.send_task(name, args=[CANARY], kwargs=JOB, queue=QUEUE, task_id=f"{name} {CANARY}")
        root.lpush(QUEUE, f"no message: {CANARY}")
        wait_until(lambda: len(client.dead()) == 4, "what cannot be read is put aside")

        (tmp_path / "crash").touch()
        client.result(client.submit(**JOB), timeout_s=30)
        wait_until(lambda: "RuntimeError: a bug" in worker.log, "the worker says that a step failed")
        root.client_kill_filter(_type="normal", skipme=True)
        assert client.result(client.submit(**JOB), timeout_s=30).finish_reason == "length"

    environment = {"HERD_REDIS_URL": settings.redis_url, "HERD_MODEL_NAME": "m"}
    lines = ("status", "status --json", "dead list", "dead list --json", "dead show poison", "health")
    shown = {line: invoke(*line.split(), **environment).output for line in (*lines, "settings", "doctor")}
    assert "poisoned" in shown["dead show poison"]
    shown["arguments"] = arguments_of(worker)

    seen = events_of_celery(channel)
    assert {"task-received", "task-started", "task-succeeded"} <= {event["type"] for event in seen}
    assert {event["result"] for event in seen if event["type"] == "task-succeeded"} <= {", ..."}
    shown["events"] = json.dumps(seen)
    server.stop()
    wait_until(lambda: "waiting for Redis" in worker.log, "the worker says that Redis is away")
    shown["log"] = worker.log
    assert [name for name, text in shown.items() if CANARY in text] == []


def test_a_message_of_our_client_holds_no_prompt(redis: Redis, redis_url: str) -> None:
    with Client(redis_url, model="m") as client:
        client.submit(**JOB)
    (message,) = redis.lrange(QUEUE, 0, -1)
    assert CANARY.encode() not in message
