"""Messages of jobs that have ended, in a queue that no worker reads: nobody else would take them away."""

import re

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, together
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.message import is_queue_of, queue_name
from llama_herd.tasks.protocol.priority import LANES

#: Messages that one round trip reads.
STEP = 1000
#: The tag of a message that a script has pushed, with the job's id. Bare messages have Celery's own tags, and
#: carry their jobs.
_TAG = re.compile(rb'"delivery_tag": ?"([\w.:-]+):[0-9]+:[0-9]+"')


async def forget_stale_messages(ledger: Ledger, model: str) -> int:
    """Remove them from a model's queue, and return how many; none if a worker serves it, which takes them."""
    workers = await Reports(ledger.tenant).workers()
    if any(worker.model == model and worker.state != "stopping" for worker in workers):
        return 0
    queue = queue_name(model, ledger.tenant)
    if not is_queue_of(ledger.tenant, queue):
        return 0
    return sum([await _forget_in(f"{queue}{lane}", ledger) for lane in LANES])


async def _forget_in(name: str, ledger: Ledger) -> int:
    num_removed, place = 0, 0
    while messages := await RedisCall("LRANGE", (name,), (place, place + STEP - 1), list):
        tags = [(message, _TAG.search(message)) for message in messages]
        named = [(message, tag[1].decode()) for message, tag in tags if tag]
        states = await together([ledger.state(job_id) for _, job_id in named])
        stale = [
            message
            for (message, _), state in zip(named, states, strict=True)
            if state not in ("queued", "running")
        ]
        num = sum(await together([RedisCall("LREM", (name,), (1, message), int) for message in stale]))
        num_removed += num
        place += len(messages) - num
    return num_removed
