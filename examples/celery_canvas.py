"""Tales in chains and a chord, and an errback of one, in a shop with a queue of its own.

Needs a worker: `herd worker --with-redis`.

celery --workdir examples -A celery_canvas worker
python examples/celery_canvas.py
"""

import os
from typing import Any

from celery import Celery, Signature, chain, chord

from llama_herd.tasks.links import route_links

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("shop", broker=url, backend=url)
app.conf.task_default_queue = "shop"
route_links(app)  # links of tales come home into that queue

JOB = {"sampling": {"max_tokens": 40, "temperature": 0}}


def tale(prompt: str, **fields: Any) -> Signature:
    """A job for the herd. It has its own prompt, so it takes no result of an earlier task, as by `.si()`."""
    job = {**JOB, "prompt": prompt, **fields}
    return app.signature("herd.generate", kwargs=job, queue="herd.tales", immutable=True)


def more() -> Signature:
    """A job whose prompt is the text of the task before it in a chain."""
    return app.signature("herd.generate", kwargs=JOB, queue="herd.tales")


@app.task(name="shop.num_words")
def num_words(result: dict[str, Any]) -> int:
    """How long a finished tale is."""
    return len(result["text"].split())


@app.task(name="shop.longest")
def longest(results: list[dict[str, Any]]) -> int:
    return max(num_words(result) for result in results)


@app.task(name="shop.failed")
def failed(request: Any, exc: Exception | None = None, traceback: Any = None) -> str:
    """Celery gives all three to an errback that the worker has, and the id alone to any other."""
    job_id = getattr(request, "id", request)
    return f"failed: {exc or app.AsyncResult(job_id).result}"


if __name__ == "__main__":
    print(chain(tale("Once upon a time"), num_words.s()).apply_async().get(timeout=60))
    animals = ("owl", "otter", "old fox")
    print(chord([tale(f"Long ago, an {one}") for one in animals], longest.s()).apply_async().get(timeout=60))
    print(chain(tale("Once upon a time"), more(), num_words.s()).apply_async().get(timeout=60))
    told = failed.s()
    answer = told.freeze()
    tale("Once upon a time", colour="blue").on_error(told).apply_async()
    print(answer.get(timeout=60))
