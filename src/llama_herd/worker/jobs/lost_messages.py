"""LostMessages: messages that a worker has taken and was killed with before it had claimed their jobs."""

from collections.abc import Callable
from time import monotonic

import structlog
from redis import Redis

from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.ledger.reports import WORKER_TTL_S
from llama_herd.worker.broker.message_notes import MessageNotes, PutBack

log = structlog.get_logger(__name__)

#: Held messages are noted anew about once a second. One that is not for so long is nobody's.
SILENT_S: float = WORKER_TTL_S
#: For so long it is seen to be nobody's. Redis may have been away, and then all have been silent.
SEEN_S = 3.0


class LostMessages:
    """Puts back what nobody holds. Any number of workers may: a message goes back once."""

    def __init__(self, redis: Redis, notes: MessageNotes, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds, as of time.monotonic."""
        self._redis = redis
        self._notes = notes
        self._clock = clock
        self._seen_s: dict[bytes, float] = {}  # by tag: since when
        self._refusal = ""  # the last one

    def look(self) -> None:
        """Put back what has been nobody's for long enough. Raises RedisError."""
        now_s = self._clock()
        unheld = run_call(self._redis, self._notes.unheld(SILENT_S))
        self._seen_s = {tag: self._seen_s.get(tag, now_s) for tag in unheld}
        lost = [tag for tag, seen_s in self._seen_s.items() if now_s - seen_s >= SEEN_S]
        if lost:
            self._tell(run_dialogue(self._redis, self._notes.put_back(lost[::-1])))

    def _tell(self, done: PutBack) -> None:
        """Log what was put back, and a refusal once."""
        if done.num:
            log.warning("messages put back that no worker holds", num_messages=done.num)
        if done.refusal and done.refusal != self._refusal:
            log.error("messages not put back, they stay noted as held", error=done.refusal)
        self._refusal = done.refusal
