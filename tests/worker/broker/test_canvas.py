"""Whatever canvas a shop builds of our tasks and its own comes to its end.

Its messages carry all that they can, are packed in any way, and go by any lists that the shop's options name.
"""

import gc
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature
from hypothesis import Phase, given, settings, strategies as st
from kombu import compression
from kombu.utils.json import dumps, loads
from redis import Redis

from llama_herd.errors import GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.protocol.message import TASK_NAME, queue_name
from llama_herd.worker.settings import WorkerSettings
from tests.local.forked_python import start_forked
from tests.local.processes import PATIENCE_S, WorkerProcess, wait_until
from tests.worker.broker.kombu_values import nested

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(600)]

QUEUE = queue_name("m")
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": {"max_tokens": 2, "ignore_eos": True}}

#: The shop: it keeps what its task is given, as it comes.
SHOP = """
import json, os
from celery import Celery
from kombu.utils.json import dumps
app = Celery("shop", broker=os.environ["URL"], backend=os.environ["URL"])
app.conf.broker_transport_options = json.loads(os.environ["OPTIONS"])

@app.task(name="shop.keep")
def keep(*results, given=None):
    app.backend.client.rpush("kept", dumps(given))
    return "kept"
"""

STEPS = [pytest.param(num, marks=[pytest.mark.slow] * (num != 10)) for num in range(3, 11)]
SEPARATORS = [pytest.param(None, marks=pytest.mark.slow), ":"]


@pytest.fixture(scope="module", params=STEPS, ids=lambda num: f"{num} steps")
def num_steps(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=SEPARATORS, ids=lambda sep: f"sep {sep}")
def options(request: pytest.FixtureRequest, num_steps: int) -> dict[str, Any]:
    steps = {"priority_steps": list(range(num_steps)), "queue_order_strategy": "priority"}
    return steps | ({"sep": request.param} if request.param else {})


@pytest.fixture(scope="module")
def worker(
    server: EmbeddedRedis, tiny_settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with WorkerProcess(server.url, tiny_settings.model, "m", log, model_name="m", slots=4) as worker:
        yield worker


@pytest.fixture(scope="module")
def shop_worker(
    worker: WorkerProcess,
    server: EmbeddedRedis,
    options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    command = ["celery", "-A", "shop", "worker", "-P", "solo", "-l", "info", "--without-mingle"]
    env = {**os.environ, "URL": server.url, "OPTIONS": json.dumps(options)}
    process = start_forked([*command, "--without-gossip"], env, folder / "log", folder)
    try:
        wait_until(lambda: "ready" in (folder / "log").read_text(), "the shop's worker is up", PATIENCE_S)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def shop(shop_worker: None, server: EmbeddedRedis, options: dict[str, Any]) -> Iterator[Celery]:
    """The shop's own app."""
    app = Celery("shop", broker=server.url, backend=server.url, set_as_current=False)
    app.conf.broker_transport_options = options
    yield app
    gc.collect()  # results unsubscribe when they are freed, while Redis is there


soon = datetime.now(UTC) + timedelta(days=1)
_years = (soon.replace(tzinfo=None), datetime(2090, 1, 1))
_past = (datetime(2001, 1, 1), datetime(2020, 1, 1))
zones: st.SearchStrategy[Any] = st.none() | st.just(UTC)

#: Options of a signature; a time that is past or far keeps nobody waiting.
signature_options = st.fixed_dictionaries(
    {},
    optional={
        "expires": st.datetimes(*_years, timezones=zones),
        "eta": st.datetimes(*_past, timezones=zones),
        "headers": st.dictionaries(st.text("abc", min_size=1), nested, max_size=2),
        "priority": st.integers(0, 9),
        "compression": st.sampled_from(compression.encoders()),
        "shadow": st.text("abc", min_size=1),
    },
)
ours = st.tuples(st.just("ours"), st.none(), signature_options)
theirs = st.tuples(st.just("theirs"), nested, signature_options)
steps = ours | theirs
canvases = st.recursive(
    steps,
    lambda inner: (
        st.tuples(st.just("chain"), st.lists(inner, min_size=2, max_size=3), st.none())
        | st.tuples(st.just("group"), st.lists(inner, min_size=1, max_size=3), st.none())
        | st.tuples(st.just("chord"), st.lists(inner, min_size=1, max_size=2), theirs)
    ),
    max_leaves=6,
)


class Canvas:
    """What was drawn, as Celery has it, and the values that the shop's task is to keep."""

    def __init__(self, shop: Celery) -> None:
        self._shop = shop
        self.given: list[Any] = []

    def build(self, drawn: Any) -> Signature:
        kind, content, more = drawn
        match kind:
            case "ours":
                return self.ours(**more)
            case "theirs":
                numbered = [len(self.given), content]  # Celery calls two equal links once
                self.given.append(numbered)
                return self._shop.signature("shop.keep", kwargs={"given": numbered}).set(**more)
            case "chain":
                return chain(*map(self.build, content), app=self._shop)
            case "group":
                return group(*map(self.build, content), app=self._shop)
        return chord(list(map(self.build, content)), self.build(more), app=self._shop)

    def ours(self, **options: Any) -> Signature:
        return self._shop.signature(TASK_NAME, kwargs=JOB, queue=QUEUE, immutable=True).set(**options)


def law_of(num_examples: int) -> settings:
    return settings(max_examples=num_examples, phases=[Phase.generate], database=None, deadline=None)


EXAMPLES = [3, pytest.param(25, marks=pytest.mark.slow)]


def check_kept(redis: Redis, values: list[Any]) -> None:
    wait_until(lambda: redis.llen("kept") >= len(values), "the shop has all", PATIENCE_S)
    kept = [loads(raw) for raw in redis.lrange("kept", 0, -1)]
    assert sorted(map(dumps, kept)) == sorted(map(dumps, values))
    for value in values:
        kept.remove(value)
    assert not redis.exists("herd:default:dead")


@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_every_canvas_comes_to_its_end(num_examples: int, shop: Celery, server: EmbeddedRedis) -> None:
    @law_of(num_examples)
    @given(ours, st.lists(theirs, max_size=2), canvases, canvases)
    def law(first: Any, links: list[Any], second: Any, third: Any) -> None:
        canvas = Canvas(shop)
        head = canvas.build(first)
        for link in links:
            head.link(canvas.build(link))
        whole = chain(head, canvas.build(second), canvas.build(third), app=shop)
        with Redis.from_url(server.url) as redis:
            redis.delete("kept")
            done = whole.apply_async()
            wait_until(done.ready, "the canvas has ended", PATIENCE_S)
            assert done.successful()
            check_kept(redis, canvas.given)

    law()


@pytest.mark.parametrize("num_examples", EXAMPLES)
def test_a_job_that_fails_keeps_its_own_error_and_calls_its_errbacks(
    num_examples: int, shop: Celery, server: EmbeddedRedis
) -> None:
    @law_of(num_examples)
    @given(ours, st.lists(theirs, min_size=1, max_size=3))
    def law(first: Any, errbacks: list[Any]) -> None:
        canvas = Canvas(shop)
        job = canvas.build(first)
        job.kwargs = {**JOB, "colour": "blue"}
        for errback in errbacks:
            job.link_error(canvas.build(errback))
        with Redis.from_url(server.url) as redis:
            redis.delete("kept")
            sent = job.apply_async()
            wait_until(sent.ready, "the job has ended", PATIENCE_S)
            check_kept(redis, canvas.given)
            told = shop.AsyncResult(sent.id).result
            assert isinstance(told, GenerationError)
            assert "colour" in str(told)

    law()
