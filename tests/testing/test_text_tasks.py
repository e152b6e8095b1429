"""Celery's tasks for vectors and ranks keep what `herd.generate` promises: in any canvas, at any time."""

import gc
import json
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from redis import Redis

from llama_herd import Client, DeadlineExceeded, GenerationError
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.links import route_links
from llama_herd.testing import FakeHerd
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.herd import Herd
from tests.tasks.ledger.test_delayed import let_it_be_due

pytestmark = [pytest.mark.redis, pytest.mark.worker]

TEXTS = ["a llama", "an alpaca", "a llama"]
RANKING = {"query": "Who spits?", "documents": ["An alpaca hums.", "Who spits? It.", "A llama spits."]}
#: Each task with arguments of its own.
JOBS: list[tuple[str, dict[str, Any]]] = [("herd.embed", {"texts": TEXTS}), ("herd.rerank", RANKING)]

both = pytest.mark.parametrize(("task", "fields"), JOBS)


@pytest.fixture
def shop(herd: FakeHerd) -> Iterator[Celery]:
    """A shop's app, whose worker runs in a thread of the test."""
    app = Celery("shop", broker=herd.url, backend=herd.url, set_as_current=False)
    app.conf.update(task_default_queue="shop", result_backend_always_retry=False)
    route_links(app)

    @app.task(name="shop.search", shared=False)
    def search() -> list[str]:
        return RANKING["documents"]  # type: ignore[return-value]

    @app.task(name="shop.keep", shared=False)
    def keep(*results: Any) -> Any:
        return results

    @app.task(name="shop.failed", shared=False)
    def failed(request: Any, *_: Any) -> str:
        return str(app.AsyncResult(getattr(request, "id", request)).result)

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        yield app
    gc.collect()  # results unsubscribe when they are freed, while Redis is there
    app.close()


def job(app: Celery, task: str, *args: Any, **options: Any) -> Signature:
    return app.signature(task, args=args, queue="herd.qwen", app=app, **options)


def got(canvas: Signature) -> Any:
    return canvas.apply_async().get(timeout=PATIENCE_S)


def vectors(client: Client, texts: list[str]) -> list[list[float]]:
    return [list(one) for one in client.embed(texts, model="qwen").vectors]


@pytest.mark.parametrize(
    ("args", "kwargs"), [([], {"texts": TEXTS}), ([TEXTS], {}), ([tuple(TEXTS)], {"retries": 2})]
)
def test_vectors_are_lists_of_floats_in_the_order_of_the_texts(
    herd: FakeHerd, shop: Celery, args: list[Any], kwargs: dict[str, Any]
) -> None:
    sent = shop.send_task("herd.embed", args=args, kwargs=kwargs, queue="herd.qwen")
    told = sent.get(timeout=PATIENCE_S)
    assert told["vectors"] == vectors(herd.client, TEXTS)
    assert told["usage"]["total_tokens"] > len(TEXTS)
    assert (told["job"], told["finish_reason"], "text" in told) == (sent.id, "stop", False)
    assert [array("f", one) for one in told["vectors"]] == herd.client.result(sent.id).floats


@pytest.mark.parametrize(
    "args", [[], ["Who spits?", RANKING["documents"]], [RANKING["documents"], "Who spits?"]]
)
def test_ranks_come_with_the_best_document_first(shop: Celery, args: list[Any]) -> None:
    told = got(job(shop, "herd.rerank", *args, kwargs={} if args else RANKING))
    assert [(one["index"], one["logit"]) for one in told["ranks"]] == [(1, 2.0), (2, 0.0), (0, -2.0)]
    assert [one["score"] for one in told["ranks"]] == sorted(one["score"] for one in told["ranks"])[::-1]
    assert told["ranks"][1]["score"] == 0.5


def test_the_same_by_the_task_for_all_jobs_is_a_result_with_base64(herd: FakeHerd, shop: Celery) -> None:
    sent = shop.send_task("herd.generate", kwargs={"kind": "embed", "texts": TEXTS}, queue="herd.qwen")
    assert sent.get(timeout=PATIENCE_S) == herd.client.result(sent.id).model_dump(mode="json")


def test_in_a_chain_the_list_of_the_task_before_is_what_is_taken(herd: FakeHerd, shop: Celery) -> None:
    keep, search = shop.tasks["shop.keep"], shop.tasks["shop.search"]
    ((told,),) = [got(chain(search.si(), job(shop, "herd.embed"), keep.s(), app=shop))]
    assert told["vectors"] == vectors(herd.client, search())
    ranked = job(shop, "herd.rerank", kwargs={"query": "Who spits?"})
    ((told,),) = [got(chain(search.si(), ranked, keep.s(), app=shop))]
    assert [one["index"] for one in told["ranks"]] == [1, 2, 0]
    ((told,),) = [got(chain(search.si(), job(shop, "herd.rerank", "Who spits?"), keep.s(), app=shop))]
    assert told["ranks"][0]["index"] == 1


def test_what_was_generated_is_embedded_alone_and_of_a_whole_chord(herd: FakeHerd, shop: Celery) -> None:
    herd.answer(lambda asked: f"of {asked.text}")
    tales = [job(shop, "herd.generate", kwargs={"prompt": one}, immutable=True) for one in ("a", "b")]
    told = got(chain(tales[0], job(shop, "herd.embed"), app=shop))
    assert told["vectors"] == vectors(herd.client, ["of a"])
    told = got(chord(tales, job(shop, "herd.embed"), app=shop))
    assert told["vectors"] == vectors(herd.client, ["of a", "of b"])
    asked = job(shop, "herd.rerank", kwargs={"documents": ["of b", "of a"]})
    assert got(chain(tales[0], asked, app=shop))["ranks"][0]["index"] == 1


@both
def test_groups_chords_and_links_take_them_as_any_task(
    shop: Celery, task: str, fields: dict[str, Any]
) -> None:
    keep = shop.tasks["shop.keep"]
    mine = [job(shop, task, kwargs=fields, immutable=True) for _ in range(3)]
    one, *others = got(group(mine, app=shop))
    assert len(others) == 2
    part = "vectors" if task == "herd.embed" else "ranks"
    assert all(other[part] == one[part] for other in others)
    ((kept,),) = [got(chord(mine, keep.s(), app=shop))]
    assert [each[part] for each in kept] == [one[part]] * 3
    link = keep.s()
    linked = link.freeze()
    mine[0].clone().set(link=[link]).apply_async()
    assert linked.get(timeout=PATIENCE_S)[0][part] == one[part]
    again = chain(mine[0], mine[1], keep.s(), app=shop)
    assert got(again)[0][part] == one[part]


@both
def test_an_errback_hears_of_a_wrong_field_by_its_name(
    shop: Celery, task: str, fields: dict[str, Any]
) -> None:
    told = shop.tasks["shop.failed"].s()
    answer = told.freeze()
    sent = job(shop, task, kwargs={**fields, "temperature": 1}).on_error(told).apply_async()
    assert answer.get(timeout=PATIENCE_S) == "invalid_job: temperature: unknown field"
    with pytest.raises(GenerationError, match="temperature"):
        sent.get(timeout=PATIENCE_S)


@both
def test_a_text_beside_that_of_the_task_before_is_refused(
    shop: Celery, task: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(GenerationError, match=r"positional argument.*\.si\(\)"):
        got(chain(shop.tasks["shop.search"].si(), job(shop, task, kwargs=fields), app=shop))


@both
def test_a_job_that_waits_comes_again_by_the_name_of_its_task(
    herd: FakeHerd, shop: Celery, task: str, fields: dict[str, Any]
) -> None:
    """Its second message is made from the record, and the links are in it."""
    link = shop.tasks["shop.keep"].s()
    linked = link.freeze()
    sent = job(shop, task, kwargs=fields).apply_async(countdown=600, link=[link])
    with Redis.from_url(herd.url) as redis:
        wait_until(lambda: redis.zscore(Ledger().key("delayed"), sent.id), "it is on record")
        envelope = json.loads(redis.hget(Ledger().job_key(sent.id), "envelope") or b"")
        let_it_be_due(Herd(redis, Ledger()), sent.id)
    assert envelope["headers"]["task"] == task
    told = sent.get(timeout=PATIENCE_S)
    assert told["vectors" if task == "herd.embed" else "ranks"]
    assert linked.get(timeout=PATIENCE_S) == [told]


@both
def test_a_job_that_waits_is_revoked(herd: FakeHerd, shop: Celery, task: str, fields: dict[str, Any]) -> None:
    sent = job(shop, task, kwargs=fields).apply_async(countdown=600)
    with Redis.from_url(herd.url) as redis:
        wait_until(lambda: redis.zscore(Ledger().key("delayed"), sent.id), "it is on record")
    sent.revoke()
    with pytest.raises(TaskRevokedError):
        sent.get(timeout=PATIENCE_S)
    assert herd.client.result(sent.id).finish_reason == "cancelled"


@both
def test_expiry_and_deadline_end_it(herd: FakeHerd, shop: Celery, task: str, fields: dict[str, Any]) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = job(shop, task, kwargs=fields).apply_async(expires=past)
    *_, end = herd.client.stream(expired.id, timeout_s=PATIENCE_S)
    assert getattr(end, "finish_reason", None) == "deadline"
    late = {**fields, "deadline_ms": round(past.timestamp() * 1000)}
    with pytest.raises(DeadlineExceeded):
        got(job(shop, task, kwargs=late))


@both
def test_without_a_result_nothing_is_stored_and_its_stream_tells_all(
    herd: FakeHerd, shop: Celery, task: str, fields: dict[str, Any]
) -> None:
    sent = job(shop, task, kwargs={**fields, "priority": 3}).apply_async(ignore_result=True)
    assert len(herd.client.result(sent.id, wait=True).floats) == 3
    job(shop, task, kwargs=fields).apply_async().get(timeout=PATIENCE_S)  # settled after it
    with Redis.from_url(herd.url) as redis:
        wait_until(lambda: redis.hget(Ledger().job_key(sent.id), "settled"), "it is settled")
        assert not redis.exists(Ledger().result_key(sent.id))
