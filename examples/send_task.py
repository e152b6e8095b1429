"""Enqueue from any Celery shop, with nothing of llama-herd imported: `python examples/send_task.py [JOB_ID]`.

Needs `pip install 'celery[redis]'`. A job's id is its task's: choose it to subscribe before the job is there.
"""

import os
import sys

from celery import Celery

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery(broker=url, backend=url)
sent = app.send_task(
    "herd.generate",
    kwargs={"prompt": "Once upon a time", "sampling": {"max_tokens": 80, "temperature": 0}},
    queue="herd.tales",
    task_id=sys.argv[1] if len(sys.argv) > 1 else None,
)
print(sent.id)
print(sent.get(timeout=60)["text"])
