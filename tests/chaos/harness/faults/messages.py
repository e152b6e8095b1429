"""Malformed and malicious messages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from llama_herd.tasks.ledger.dead_letters import MAX_LETTER_BYTES, MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.hostile import TRACELESS, HostileMessage, HostileMessages
from tests.chaos.harness.malformed import UNREADABLE, mutants
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.verdict import BrokenLaw

#: Random messages per strike, besides the known kinds.
NUM_MUTANTS = 300

#: Malicious messages per strike.
NUM_HOSTILE = 100

#: Longest time until the job of a read message has ended.
END_S = 20.0


@contextmanager
def malformed(herd: Herd) -> Iterator[list[str]]:
    """Malformed messages between the herd's jobs; these, and a job behind the messages, must go on."""
    for raw in (*UNREADABLE.values(), *islice(mutants(herd.rng), NUM_MUTANTS)):
        herd.jobs.redis.lpush(herd.queue, raw)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
    yield [*herd.jobs.running(), job_id]


@contextmanager
def hostile(herd: Herd) -> Iterator[list[str]]:
    """Malicious messages between the herd's jobs, which must go on; none of the messages may vanish."""
    drawn = HostileMessages(herd.rng.getrandbits(32), herd.jobs.running())
    messages = list(islice(drawn, NUM_HOSTILE))
    for message in messages:
        herd.jobs.redis.lpush(herd.queue, message.raw)
    (job_id,) = herd.jobs.submit(1, {"max_tokens": 10})
    yield [*herd.jobs.running(), job_id]
    herd.jobs.results([job_id])  # which is read after them
    lost = vanished(herd, messages)
    if lost:
        kinds = ", ".join(sorted({message.kind for message in lost}))
        raise BrokenLaw("messages do not vanish", f"{len(lost)} of {NUM_HOSTILE} did: {kinds}")


def vanished(herd: Herd, messages: Sequence[HostileMessage]) -> list[HostileMessage]:
    """The messages that are neither dead letters nor name a job that ends within END_S.

    Call it when all have been read. They must be few enough that every dead letter is kept. A job that waits
    for its time is cancelled.
    """
    letters = run_call(herd.jobs.redis, DeadLetters().letters(MAX_LETTERS))
    buried = {(letter.num_bytes, letter.raw) for letter in letters}
    left = [
        message for message in messages if (len(message.raw), message.raw[:MAX_LETTER_BYTES]) not in buried
    ]
    left = [message for message in left if message.kind not in TRACELESS]

    def all_have_ended() -> bool:
        for job_id in herd.jobs.redis.zrange(herd.jobs.ledger.key("delayed"), 0, -1):
            herd.jobs.client.cancel(job_id.decode())
        records = run_calls(
            herd.jobs.redis, [herd.jobs.ledger.record(message.job_id or "\0") for message in left]
        )
        pairs = zip(left, records, strict=True)
        left[:] = [message for message, record in pairs if not getattr(record, "is_final", False)]
        return not left

    with suppress(TimeoutError):
        wait_until(all_have_ended, "all have ended", END_S)
    return left
