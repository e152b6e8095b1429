"""How many replicas of Redis have a job: a primary that is lost before they have it takes it along."""

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import Call, Dialogue


def num_copies(ledger: Ledger, job_id: str, wanted: int, timeout_s: float) -> Dialogue[int]:
    """Wait for a time until `wanted` replicas have the job; return how many do, or 0 if the job is gone.

    All in one round trip, so by one connection: WAIT counts what this one has written. It may have written
    nothing, if the job was accepted before. So it publishes something on a channel that nobody reads: that
    goes to replicas, after all that was written before.
    """
    record, _, num = yield [
        ledger.record(job_id),
        Call("PUBLISH", (), (ledger.channel(""), ""), int),
        Call("WAIT", (), (wanted, int(1000 * timeout_s)), int),
    ]
    return 0 if record is None else int(num)
