"""Messages that are none, and such as mean harm."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from llama_herd.tasks.ledger.dead_letters import MAX_LETTER_BYTES, MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.redis_call import run, run_many
from llama_herd.worker.chaos.herd import Herd
from llama_herd.worker.chaos.hostile import TRACELESS, Harm, Hostile
from llama_herd.worker.chaos.malformed import UNREADABLE, mutants
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.chaos.verdict import BrokenLaw

#: Strange messages a strike, those of known kinds not counted.
NUM_MUTANTS = 300

#: Hostile ones a strike.
NUM_HARMS = 100

#: How long a message that is read may take to come to its end.
END_S = 20.0


@contextmanager
def malformed(herd: Herd) -> Iterator[list[str]]:
    """What the queue is given between the herd's jobs; they, and a job behind it all, must go on."""
    for raw in (*UNREADABLE.values(), *islice(mutants(herd.rng), NUM_MUTANTS)):
        herd.jobs.redis.lpush(herd.queue, raw)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
    yield [*herd.jobs.running(), job_id]


@contextmanager
def hostile(herd: Herd) -> Iterator[list[str]]:
    """The same with messages of somebody who knows what hurts; none of them may vanish."""
    drawn = Hostile(herd.rng.getrandbits(32), herd.jobs.running())
    harms = list(islice(drawn, NUM_HARMS))
    for harm in harms:
        herd.jobs.redis.lpush(herd.queue, harm.raw)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
    yield [*herd.jobs.running(), job_id]
    herd.jobs.results([job_id])  # which is read after them
    lost = vanished(herd, harms)
    if lost:
        kinds = ", ".join(sorted({harm.kind for harm in lost}))
        raise BrokenLaw("messages do not vanish", f"{len(lost)} of {NUM_HARMS} did: {kinds}")


def vanished(herd: Herd, harms: Sequence[Harm]) -> list[Harm]:
    """Those that neither are dead letters nor name a job that has ended; what is read may take some time.

    All must have been read, and so few be sent at once that every letter is kept. A job that waits for a time
    to come is cancelled.
    """
    letters = run(herd.jobs.redis, DeadLetters().letters(MAX_LETTERS))
    buried = {(letter.num_bytes, letter.raw) for letter in letters}
    left = [harm for harm in harms if (len(harm.raw), harm.raw[:MAX_LETTER_BYTES]) not in buried]
    left = [harm for harm in left if harm.kind not in TRACELESS]

    def all_have_ended() -> bool:
        for job_id in herd.jobs.redis.zrange(herd.jobs.ledger.key("delayed"), 0, -1):
            herd.jobs.client.cancel(job_id.decode())
        records = run_many(herd.jobs.redis, [herd.jobs.ledger.record(harm.job_id or "\0") for harm in left])
        pairs = zip(left, records, strict=True)
        left[:] = [harm for harm, record in pairs if not getattr(record, "is_final", False)]
        return not left

    with suppress(TimeoutError):
        wait_until(all_have_ended, "all have ended", END_S)
    return left
