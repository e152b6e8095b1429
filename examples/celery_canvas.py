"""Tales inside a chain and a chord, beside tasks of your own. Needs a worker: `herd worker --with-redis`.

celery --workdir examples -A celery_canvas worker
python examples/celery_canvas.py
"""

import os
from typing import Any

from celery import Celery, Signature, chain, chord

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("shop", broker=url, backend=url)


def tale(prompt: str) -> Signature:
    """A job for the herd. It takes no result of an earlier task, so it begins a chain."""
    job = {"prompt": prompt, "sampling": {"max_tokens": 40, "temperature": 0}}
    return app.signature("herd.generate", kwargs=job, queue="herd.tales", immutable=True)


@app.task(name="shop.num_words")
def num_words(result: dict[str, Any]) -> int:
    """How long a finished tale is."""
    return len(result["text"].split())


@app.task(name="shop.longest")
def longest(results: list[dict[str, Any]]) -> int:
    return max(num_words(result) for result in results)


if __name__ == "__main__":
    print(chain(tale("Once upon a time"), num_words.s()).apply_async().get(timeout=60))
    animals = ("owl", "otter", "old fox")
    print(chord([tale(f"Long ago, an {one}") for one in animals], longest.s()).apply_async().get(timeout=60))
