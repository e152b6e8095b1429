"""How long the answer to a request can become, a product of its fields: bounded before all else."""

from collections.abc import Sequence

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.openai.request_body import CHAT, Endpoint
from llama_herd.tasks.protocol.job import PROMPT_ID_BYTES, GenerationJob

#: Most bytes that an answer may have by the fields of its request.
MAX_ESTIMATED_BYTES = 16_777_216
#: Most bytes of an answer that is given whole. Only one with tokens of unusual lengths reaches it.
MAX_BYTES = 2 * MAX_ESTIMATED_BYTES

#: Bytes of one token with its score. In a chat they are written twice: as a text, and as a list of numbers.
_SCORE_BYTES, _CHAT_SCORE_BYTES = 32, 80


def estimated_bytes(endpoint: Endpoint, job: GenerationJob) -> int:
    """The bytes of the answer to one prompt, with outputs at their longest."""
    asked = job.sampling
    is_prompt_told = job.echo or asked.prompt_logprobs is not None
    num_prompt = job.estimated_prompt_tokens if is_prompt_told else 0  # to count a long chat takes a while
    num_scores = asked.max_tokens * (1 + asked.top_logprobs) if asked.logprobs else 0
    if asked.prompt_logprobs is not None:
        num_scores += num_prompt * (1 + asked.prompt_logprobs)
    num_tokens = asked.max_tokens + (num_prompt if job.echo else 0)
    score_bytes = _CHAT_SCORE_BYTES if endpoint == CHAT else _SCORE_BYTES
    return asked.n * (PROMPT_ID_BYTES * num_tokens + score_bytes * num_scores)


def check_answer_size(endpoint: Endpoint, jobs: Sequence[GenerationJob]) -> int:
    """The bytes of the answer to all prompts of a request. Raises InvalidJob if they are too many."""
    num_bytes = sum(estimated_bytes(endpoint, job) for job in jobs)
    if num_bytes > MAX_ESTIMATED_BYTES:
        raise InvalidJob([_complaint(endpoint, jobs, num_bytes)])
    return num_bytes


def _complaint(endpoint: Endpoint, jobs: Sequence[GenerationJob], num_bytes: int) -> FieldError:
    """What makes it so long: each field counts that multiplies."""
    asked = jobs[0].sampling
    has_scores = asked.logprobs or asked.prompt_logprobs is not None
    fields = {
        "prompt": len(jobs) > 1 and f"{len(jobs)} prompts",
        "n": asked.n > 1 and f"n={asked.n}",
        "echo": jobs[0].echo and "echo=true",
        ("top_logprobs" if endpoint == CHAT else "logprobs"): has_scores
        and f"{max(asked.top_logprobs, asked.prompt_logprobs or 0)} likely tokens beside each",
        "max_tokens": f"max_tokens={asked.max_tokens}",
    }
    told = {name: words for name, words in fields.items() if words}
    message = (
        f"the answer could have {num_bytes} bytes ({', '.join(told.values())}), but may have at most "
        f"{MAX_ESTIMATED_BYTES}. Fix: less of {', '.join(told)}, or several requests"
    )
    return FieldError(next(iter(told)), message)
