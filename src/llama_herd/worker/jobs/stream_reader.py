"""Reads jobs' streams part by part, and no more than workers can have written."""

from collections.abc import Iterator
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import ResponseError

from llama_herd.tasks.ledger.answers import StreamPart
from llama_herd.tasks.ledger.job_reads import FIRST
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall, UnreadableReply, run_call
from llama_herd.tasks.protocol.events import Event, Token
from llama_herd.tasks.protocol.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS
from llama_herd.tasks.protocol.text_job import MAX_TEXTS

#: Bytes read in one round trip, or one event if it is longer. A longer part would block Redis for too long.
PART_BYTES = 131_072

#: A token: its id, and its text in JSON, once as it is and once as what is read in it. Few are longer.
TOKEN_BYTES = 11 + 2 * 256
#: The other fields of an event, with a job id of 128 characters.
EVENT_BYTES = 384
#: An id and what it stands for; on average, since long ones are few.
PIECE_BYTES = 24
#: A log-probability, the likeliest tokens with theirs, and what all of these stand for.
SCORE_BYTES = 25 + 36 * MAX_TOP_LOGPROBS + PIECE_BYTES * (1 + MAX_TOP_LOGPROBS)
#: A token of a prompt that is told: its id, what it stands for, and its part of the text, in JSON.
ECHO_BYTES = 11 + PIECE_BYTES + 24
#: Events without tokens: some thousand starts, and an end with its error.
REST_BYTES = 1 << 20
#: Most tokens of one event: those of a minute.
MAX_EVENT_TOKENS = 65_536


@dataclass(frozen=True)
class StreamReader:
    """Reads in bounded parts: a user that may write a tenant's streams can make them of any length.

    The bounds follow from the most tokens of an output and of a prompt, a prompt's most bytes, and the
    characters of a vector. Events without scores and vectors are enough to continue a job.
    """

    redis: Redis
    ledger: Ledger
    max_tokens: int
    max_prompt_tokens: int
    max_prompt_bytes: int = 0
    vector_chars: int = 0  # in Base64

    def part(self, job_id: str, start: str = FIRST, *, with_scores: bool = True) -> RedisCall[StreamPart]:
        """The call that reads a part, by default the first one."""
        most_bytes = self._event_bytes(with_scores=with_scores)
        return self.ledger.read_part(job_id, start, PART_BYTES, most_bytes, with_scores=with_scores)

    def events(
        self, job_id: str, first: StreamPart | ResponseError | None = None, *, with_scores: bool = True
    ) -> Iterator[Event]:
        """All events of a job. `first` is the first part, if it was read already.

        Raises RedisError, which includes UnreadableReply for a stream that is longer than the job's can be.
        """
        part = first or run_call(self.redis, self.part(job_id, with_scores=with_scores))
        if isinstance(part, ResponseError):
            raise part
        num_ids = min(part.n, MAX_CHOICES * self.max_tokens)
        num_bytes = self._stream_bytes(num_ids, with_scores=with_scores)
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
            part = run_call(self.redis, self.part(job_id, part.next, with_scores=with_scores))

    def _stream_bytes(self, num_ids: int, *, with_scores: bool) -> int:
        """Most bytes of a stream of so many ids."""
        num_bytes = REST_BYTES + num_ids * (TOKEN_BYTES + EVENT_BYTES)
        scores = (num_ids + self.max_prompt_tokens) * SCORE_BYTES
        vectors = min(num_ids, MAX_TEXTS) * self.vector_chars
        return num_bytes + (scores + vectors + self._echo_bytes) * with_scores

    def _event_bytes(self, *, with_scores: bool) -> int:
        """Most bytes of an event: the first of tokens has the scores of the prompt, a start tells of it."""
        num_ids = min(self.max_tokens, MAX_EVENT_TOKENS)
        num_scores = (num_ids + self.max_prompt_tokens) * with_scores
        token = EVENT_BYTES + num_ids * TOKEN_BYTES + num_scores * SCORE_BYTES
        return max(REST_BYTES, token, self._echo_bytes * with_scores)

    @property
    def _echo_bytes(self) -> int:
        """Most bytes that tell of a prompt: one of which nothing is computed has as many tokens as bytes."""
        return (self.max_prompt_tokens + self.max_prompt_bytes) * ECHO_BYTES
