"""Enqueue from any Celery shop, with nothing of llama-herd imported."""

import os

from celery import Celery

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery(broker=url, backend=url)
sent = app.send_task(
    "herd.generate",
    kwargs={"prompt": "Once upon a time", "sampling": {"max_tokens": 80, "temperature": 0}},
    queue="herd.tales",
)
print(sent.id)
print(sent.get(timeout=60)["text"])
