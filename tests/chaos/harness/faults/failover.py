"""The primary is lost for good, with writes that its replica never got; a Sentinel promotes the replica."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep, time

from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from tests.chaos.harness.faults.redis_faults import ENDURING
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.verdict import BrokenLaw
from tests.local.watched_redis import WatchedRedis

#: Jobs that run meanwhile, and jobs that are submitted meanwhile.
NUM_RUNNING, NUM_SUBMITTED = 6, 6

#: How long the replica gets nothing before the primary is lost.
CUT_OFF_S = 1.0
#: When those jobs are due: one that runs before it is lost would run again, and be heard twice.
LATER_S = 6.0


@contextmanager
def failover(herd: Herd) -> Iterator[list[str]]:
    """In a herd of its own, whose clients wait for the replica at each submission: it keeps what it accepts.

    Raises BrokenLaw for the first law that one of its jobs breaks.
    """
    with (
        TemporaryDirectory(prefix="herd-failover-") as logs,
        FragileRedis() as primary,
        WatchedRedis(primary) as watched,
        herd.separate_herd(
            primary, Path(logs), redis_url=watched.url, replicas=1, replicas_timeout_s=0.3
        ) as other,
    ):
        other.start_workers(2)
        other.jobs.wait_for(other.jobs.submit(NUM_RUNNING, ENDURING), "n", 20)
        with ThreadPoolExecutor(1) as pool:
            with cut_off(watched, primary):
                due_ms = int(1000 * (time() + LATER_S))
                submit = partial(other.jobs.submit, prefix="late", not_before=due_ms)
                meanwhile = pool.submit(submit, NUM_SUBMITTED, {"max_tokens": 20})
                sleep(CUT_OFF_S)
                primary.stop()
            watched.wait_for_promotion()
            watched.rejoin()
            meanwhile.result()
        for law, job_id, detail in other.verdict().violations:
            raise BrokenLaw(law, detail, job_id)
    yield []


@contextmanager
def cut_off(watched: WatchedRedis, primary: EmbeddedRedis) -> Iterator[None]:
    """Within the block the replica gets nothing."""
    os.kill(watched.replica.pid, signal.SIGSTOP)
    try:
        with Redis(port=primary.port) as redis:
            redis.execute_command("CLIENT", "KILL", "TYPE", "replica")
        yield
    finally:
        os.kill(watched.replica.pid, signal.SIGCONT)
