"""A job of a few tokens, and its end."""

from functools import partial

from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import End
from llama_herd.tasks.protocol.job import GenerationJob
from tests.chaos.harness.patience import wait_until

JOB = GenerationJob.model_validate({"prompt": "a tale", "sampling": {"max_tokens": 3, "ignore_eos": True}})


def end_of(redis: Redis, ledger: Ledger, job_id: str) -> End | None:
    events = run_call(redis, ledger.read(job_id))
    return events[-1] if events and isinstance(events[-1], End) else None


def the_end(redis: Redis, job_id: str) -> End:
    """Wait for it."""
    wait_until(partial(end_of, redis, Ledger(), job_id), f"the end of {job_id}")
    end = end_of(redis, Ledger(), job_id)
    assert end is not None
    return end
