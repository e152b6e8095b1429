"""Reads jobs' streams part by part, and no more than workers can have written."""

from collections.abc import Iterator

from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import StreamPart
from llama_herd.tasks.ledger.job_reads import FIRST
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, UnreadableReply, run_call
from llama_herd.tasks.protocol.events import Event, Token
from llama_herd.worker.jobs.stream_bounds import StreamBounds

#: Bytes read in one round trip, or one event if it is longer. A longer part would block Redis for too long.
PART_BYTES = 131_072


class StreamReader:
    """Reads in bounded parts: a user that may write a tenant's streams can make them of any length.

    Events without scores are enough to continue a job.
    """

    def __init__(self, redis: Redis, ledger: Ledger, bounds: StreamBounds) -> None:
        self._redis = redis
        self._ledger = ledger
        self._bounds = bounds

    def part(self, job_id: str, start: str = FIRST, *, with_scores: bool = True) -> RedisCall[StreamPart]:
        """The call that reads a part, by default the first one."""
        most_bytes = self._bounds.event_bytes(with_scores=with_scores)
        return self._ledger.read_part(job_id, start, PART_BYTES, most_bytes, with_scores=with_scores)

    def events(
        self, job_id: str, first: StreamPart | ResponseError | None = None, *, with_scores: bool = True
    ) -> Iterator[Event]:
        """All events of a job. `first` is the first part, if it was read already.

        Raises RedisError, which includes Unreadable for a stream that is longer than the job's can be.
        """
        part = first or run_call(self._redis, self.part(job_id, with_scores=with_scores))
        if isinstance(part, ResponseError):
            raise part
        num_ids = self._bounds.num_ids(part.n)
        num_bytes = self._bounds.stream_bytes(part.n, with_scores=with_scores)
        while True:
            num_ids -= sum(len(event.ids) for event in part.events if isinstance(event, Token))
            num_bytes -= part.num_bytes
            if min(num_ids, num_bytes) < 0:
                raise UnreadableReply(
                    "the events of this job are more than its record counts. Fix: purge the job"
                )
            yield from part.events
            if not part.next:
                return
            part = run_call(self._redis, self.part(job_id, part.next, with_scores=with_scores))
