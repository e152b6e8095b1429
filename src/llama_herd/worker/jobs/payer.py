"""Payer: tells Celery of ended jobs when the Redis of its results is there again."""

import threading
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.worker.broker.delivery import Debt
from llama_herd.worker.broker.result_server import RESULT_SERVER
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

INTERVAL_S = 1.0
#: The same where results lie beside the jobs: what is owed is left from before somebody set that.
LEFT_OVER_INTERVAL_S = 15.0
#: Most results that are handed to the finisher at a time: those of jobs that end now come behind them.
MAX_DEBTS = 256
#: Another worker takes a debt that was not paid for this long.
AGAIN_MS = 15_000


class Payer(threading.Thread):
    """Hands what is owed to the finisher, a part each second. Any worker of a tenant may pay.

    Also one whose results lie beside the jobs: else what is owed when HERD_RESULT_URL is taken away stays so.
    """

    def __init__(self, tenancies: Tenancies, finisher: Finisher) -> None:
        super().__init__(name="payer", daemon=True)
        self._redis = tenancies.redis
        self._tenancies = tenancies
        self._finisher = finisher
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """Ask the thread to stop; returns at once."""
        self._is_stopping.set()

    def run(self) -> None:
        first = self._tenancies.first
        interval_s = INTERVAL_S if first.settings.keeps_results_elsewhere else LEFT_OVER_INTERVAL_S
        while not self._is_stopping.wait(interval_s):
            with suppress(RedisError):  # the publisher logs what it is
                if RESULT_SERVER.look(_connection(first), first.ledger.results_prefix):
                    for tenancy in self._tenancies:
                        self._pay(tenancy)

    def _pay(self, tenancy: Tenancy) -> None:
        num = MAX_DEBTS - self._finisher.num_waiting
        for owed in run_call(self._redis, tenancy.ledger.owed(num, AGAIN_MS)) if num > 0 else ():
            debt = Debt(tenancy.app, owed.job_id, owed.envelope)
            line = tenancy.author.line(owed.job_id, None, debt.trace_id)
            self._finisher.settle(tenancy, owed.job_id, [debt], line)


def _connection(tenancy: Tenancy) -> Redis:
    """The connection of the results, without our retries."""
    client: Any = tenancy.app.backend.client
    return Redis(connection_pool=client.connection_pool)
