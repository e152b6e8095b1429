"""Chains, groups, chords, links and errbacks lead from our task to those of another service, and back."""

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from tests.cli.herd_command import invoke
from tests.local.forked_python import start_forked
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

QUEUE = queue_name("m")
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 5}}

#: The other service, as it knows nothing of us but a task's name and its queue.
THEIRS = """
import os
from celery import Celery
app = Celery("theirs", broker=os.environ["URL"], backend=os.environ["URL"])

@app.task(name="theirs.count")
def count(results, *more):
    return len(results) if isinstance(results, list) else 1

@app.task(name="theirs.note", bind=True)
def note(self, *args):
    app.backend.client.rpush("noted", self.request.delivery_info["routing_key"])
    return "noted"
"""


@pytest.fixture(scope="module")
def their_worker(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("theirs")
    (folder / "theirs.py").write_text(THEIRS)
    command = ["celery", "-A", "theirs", "worker", "-P", "solo", "-Q", "celery,special", "-l", "info"]
    command += ["--without-mingle", "--without-gossip"]
    process = start_forked(command, {**os.environ, "URL": server.url}, folder / "log", folder)
    try:
        wait_until(lambda: "ready" in (folder / "log").read_text(), "the other worker is up", PATIENCE_S)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def app(their_worker: None, worker_of_m: WorkerProcess, server: EmbeddedRedis) -> Iterator[Celery]:
    """The other service's own app, as it is anywhere."""
    yield Celery("theirs", broker=server.url, backend=server.url)
    gc.collect()  # results unsubscribe when they are freed, while Redis is there


@pytest.fixture
def noted(server: EmbeddedRedis) -> Iterator[Any]:
    """Queues that the other service's task was taken from."""
    with Redis.from_url(server.url) as redis:
        redis.delete("noted")
        yield lambda: [name.decode() for name in redis.lrange("noted", 0, -1)]
        assert not redis.exists(QUEUE)
        assert not redis.exists("herd:default:dead")


def ours(app: Celery, **fields: Any) -> Signature:
    return app.signature(TASK_NAME, kwargs={**JOB, **fields}, queue=QUEUE, immutable=True)


@pytest.mark.parametrize("queue", [None, "special"])
def test_a_chain_goes_on_in_their_worker_and_comes_back(app: Celery, noted: Any, queue: str | None) -> None:
    theirs = app.signature("theirs.count", queue=queue)
    back = chain(ours(app), theirs, ours(app), theirs.clone()).apply_async()
    assert back.get(timeout=PATIENCE_S) == 1


def test_a_generation_goes_on_with_the_text_of_the_one_before_it(
    app: Celery, noted: Any, server: EmbeddedRedis
) -> None:
    """A random model says anything, but here no NUL, which no prompt may have."""
    first = ours(app, sampling={"max_tokens": 5, "temperature": 0})
    more = app.signature(TASK_NAME, kwargs={"sampling": {"max_tokens": 3, "ignore_eos": True}}, queue=QUEUE)
    last = chain(first, more).apply_async()
    assert len(last.get(timeout=PATIENCE_S)["ids"]) == 3
    with Redis.from_url(server.url) as redis:
        body = redis.hget(f"herd:default:{{{last.id}}}:job", "body")
    assert json.loads(body)["prompt"] == last.parent.get()["text"]


def test_a_generation_after_one_that_gives_no_text_names_the_way_out(app: Celery, noted: Any) -> None:
    number = app.signature("theirs.count", args=([1, 2],))
    last = chain(number, app.signature(TASK_NAME, queue=QUEUE)).apply_async()
    with pytest.raises(GenerationError, match=r"Fix: \.si\(\)"):
        last.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("queue", [None, "special"])
def test_a_chord_of_ours_and_theirs_ends_in_their_task(app: Celery, noted: Any, queue: str | None) -> None:
    body = app.signature("theirs.count", queue=queue)
    header = [ours(app), ours(app), app.signature("theirs.count", args=([],), immutable=True)]
    assert chord(header)(body).get(timeout=PATIENCE_S) == 3


def test_a_group_after_ours_runs_in_their_worker(app: Celery, noted: Any) -> None:
    several = group(app.signature("theirs.note"), app.signature("theirs.note", queue="special"))
    done = chain(ours(app), several).apply_async()
    assert done.get(timeout=PATIENCE_S) == ["noted", "noted"]
    assert sorted(noted()) == ["celery", "special"]


def test_a_chord_after_ours_runs_in_their_worker(app: Celery, noted: Any) -> None:
    several = group(app.signature("theirs.count"), app.signature("theirs.count"))
    done = chain(ours(app), several, app.signature("theirs.count")).apply_async()
    assert done.get(timeout=PATIENCE_S) == 2


def test_links_and_errbacks_run_in_their_worker(app: Celery, noted: Any) -> None:
    note = app.signature("theirs.note")
    good, bad = ours(app), ours(app, colour="blue")
    for sig in (good, bad):
        for queue in (None, "special"):
            sig.link(note.clone().set(queue=queue) if queue else note.clone())
            sig.link_error(note.clone().set(queue=queue) if queue else note.clone())
    good.apply_async()
    wait_until(lambda: sorted(noted()) == ["celery", "special"], "both links are run")
    bad.apply_async()
    wait_until(lambda: sorted(noted()) == ["celery"] * 2 + ["special"] * 2, "both errbacks are run")


def test_a_chord_whose_part_fails_calls_the_errback_of_its_body(app: Celery, noted: Any) -> None:
    body = app.signature("theirs.count")
    body.link_error(app.signature("theirs.note"))
    chord([ours(app), ours(app, colour="blue")])(body)
    wait_until(lambda: noted() == ["celery"], "the errback is run")


def test_a_task_that_nobody_has_becomes_a_dead_letter_that_names_it(
    app: Celery, server: EmbeddedRedis, worker_of_m: WorkerProcess
) -> None:
    app.send_task("theirs.lost", queue=QUEUE)
    with Redis.from_url(server.url) as redis:
        wait_until(lambda: redis.exists("herd:default:dead"), "there is a dead letter")
    listed = invoke("dead", "list", HERD_REDIS_URL=server.url)
    assert listed.exit_code == 0
    assert "unknown task theirs.lost" in listed.stdout
    with Redis.from_url(server.url) as redis:
        redis.delete("herd:default:dead")
