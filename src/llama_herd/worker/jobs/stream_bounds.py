"""The most bytes and tokens that workers can have written for a job; a longer stream is not theirs."""

from dataclasses import dataclass

from llama_herd.tasks.protocol.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS

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
class StreamBounds:
    """Bounds that follow from the most tokens of an output and of a prompt, and a prompt's most bytes."""

    max_tokens: int
    max_prompt_tokens: int
    max_prompt_bytes: int = 0

    def num_ids(self, n: int) -> int:
        """Most ids of a stream whose record counts `n` tokens."""
        return min(n, MAX_CHOICES * self.max_tokens)

    def stream_bytes(self, n: int, *, with_scores: bool) -> int:
        """Most bytes of a stream whose record counts `n` tokens."""
        num_ids = self.num_ids(n)
        num_bytes = REST_BYTES + num_ids * (TOKEN_BYTES + EVENT_BYTES)
        scores = (num_ids + self.max_prompt_tokens) * SCORE_BYTES
        return num_bytes + (scores + self._echo_bytes) * with_scores

    def event_bytes(self, *, with_scores: bool) -> int:
        """Most bytes of an event: the first of tokens has the scores of the prompt, a start tells of it."""
        num_ids = min(self.max_tokens, MAX_EVENT_TOKENS)
        num_scores = (num_ids + self.max_prompt_tokens) * with_scores
        token = EVENT_BYTES + num_ids * TOKEN_BYTES + num_scores * SCORE_BYTES
        return max(REST_BYTES, token, self._echo_bytes * with_scores)

    @property
    def _echo_bytes(self) -> int:
        """Most bytes that tell of a prompt: one of which nothing is computed has as many tokens as bytes."""
        return (self.max_prompt_tokens + self.max_prompt_bytes) * ECHO_BYTES
