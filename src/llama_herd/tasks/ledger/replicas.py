"""How many replicas of Redis have a job: a primary that is lost before they have it takes it along."""

from collections.abc import Sequence

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Call, Dialogue


def num_copies(ledger: Ledger, job_ids: Sequence[str], wanted: int, timeout_s: float) -> Dialogue[list[int]]:
    """Wait for a time until `wanted` replicas have the jobs; return for each how many do, 0 if it is gone.

    All in one round trip, so by one connection: WAIT counts what this one has written. It may have written
    nothing, if the job was accepted before. So it publishes something on a channel that nobody reads: that
    goes to replicas, after all that was written before.
    """
    *records, _, num = yield [
        *map(ledger.record, job_ids),
        Call("PUBLISH", (), (ledger.channel(""), ""), int),
        Call("WAIT", (), (wanted, int(1000 * timeout_s)), int),
    ]
    return [0 if record is None else int(num) for record in records]
