"""A shop with Celery tests its own tasks beside jobs of a herd without a model."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord
from celery.contrib.testing.worker import start_worker

from llama_herd.tasks.links import route_links
from llama_herd.testing import Answer, FakeHerd
from tests.chaos.harness.patience import PATIENCE_S

pytestmark = [pytest.mark.redis, pytest.mark.worker]


@pytest.fixture
def shop(herd: FakeHerd) -> Iterator[Celery]:
    """A shop's app, whose worker runs in a thread of the test."""
    app = Celery("shop", broker=herd.url, backend=herd.url, set_as_current=False)
    app.conf.update(task_default_queue="shop", result_backend_always_retry=False)
    route_links(app)

    @app.task(name="shop.length", shared=False)
    def length(result: dict[str, Any]) -> int:
        return len(result["text"])

    @app.task(name="shop.total", shared=False)
    def total(results: list[dict[str, Any]]) -> int:
        return sum(length(one) for one in results)

    @app.task(name="shop.failed", shared=False)
    def failed(request: Any, *_: Any) -> str:
        job_id = getattr(request, "id", request)
        return f"failed: {app.AsyncResult(job_id).result}"

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        yield app
    app.close()


def tale(app: Celery, prompt: str) -> Any:
    return app.signature("herd.generate", kwargs={"prompt": prompt}, queue="herd.qwen", immutable=True)


def test_chains_chords_and_errbacks_come_home(herd: FakeHerd, shop: Celery) -> None:
    herd.answer(lambda asked: "x" * len(asked.text))
    herd.answer(Answer.failing("model_error"), to="broken")
    tasks = shop.tasks
    assert chain(tale(shop, "abc"), tasks["shop.length"].s()).apply_async().get(timeout=PATIENCE_S) == 3
    header = [tale(shop, "a" * number) for number in range(1, 5)]
    assert chord(header, tasks["shop.total"].s()).apply_async().get(timeout=PATIENCE_S) == 10
    told = tasks["shop.failed"].s()
    answer = told.freeze()
    tale(shop, "broken").on_error(told).apply_async()
    assert "model_error" in answer.get(timeout=PATIENCE_S)


def test_its_producer_still_finds_the_queue_in_the_next_test(herd: FakeHerd, shop: Celery) -> None:
    herd.answer("abc")
    for _ in range(2):
        assert tale(shop, "x").apply_async().get(timeout=PATIENCE_S)["text"] == "abc"
        herd.reset()
        herd.answer("abc")
