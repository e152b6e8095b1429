"""How long a job's stream can be that workers have written; a longer one is somebody else's."""

from dataclasses import dataclass

from llama_herd.tasks.sampling import MAX_CHOICES, MAX_TOP_LOGPROBS

#: A token: its id, and its text as JSON has it, which few vocabularies have longer.
TOKEN_BYTES = 11 + 256
#: What else an event holds, with a job's id of 128 characters.
EVENT_BYTES = 320
#: A log-probability, and those of the likeliest tokens with their ids.
SCORE_BYTES = 25 + 36 * MAX_TOP_LOGPROBS
#: What stands beside the tokens: some thousand starts, and an end with its error.
REST_BYTES = 1 << 20
#: Tokens that are gathered for one event, at most a minute's.
MAX_EVENT_TOKENS = 65_536


@dataclass(frozen=True)
class StreamBounds:
    """What follows from the most tokens of one output, and of one prompt."""

    max_tokens: int
    max_prompt_tokens: int

    def num_ids(self, n: int) -> int:
        """Most ids of a stream whose record says that they are `n`."""
        return min(n, MAX_CHOICES * self.max_tokens)

    def stream_bytes(self, n: int, *, with_scores: bool) -> int:
        """Longest stream whose record says that it holds `n` tokens."""
        num_ids = self.num_ids(n)
        num_bytes = REST_BYTES + num_ids * (TOKEN_BYTES + EVENT_BYTES)
        return num_bytes + (num_ids + self.max_prompt_tokens) * SCORE_BYTES * with_scores

    def event_bytes(self, *, with_scores: bool) -> int:
        """Longest event; the first one has the scores of the prompt."""
        num_ids = min(self.max_tokens, MAX_EVENT_TOKENS)
        num_scores = (num_ids + self.max_prompt_tokens) * with_scores
        return max(REST_BYTES, EVENT_BYTES + num_ids * TOKEN_BYTES + num_scores * SCORE_BYTES)
