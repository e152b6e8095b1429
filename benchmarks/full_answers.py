"""Answers as long as a job allows: what a worker writes whose model never ends, with all scores."""

from base64 import b64encode
from struct import pack
from typing import Any

from benchmarks.stand_in import StandIn
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.held_jobs import EmitEntry, num_recorded
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End, Event, Started, Token, Usage, Vectors
from llama_herd.tasks.protocol.job import MAX_PROMPT_SCORES, GenerationJob
from llama_herd.tasks.protocol.kinds import parse_job
from llama_herd.tasks.protocol.text_job import TextJob
from llama_herd.tasks.settings import Settings

#: Four bytes, as an estimate takes them for a token.
WORD = "abc "
#: Tokens of an event, as a fast worker gathers them where nobody watches.
EVENT_TOKENS = 64
SCORE = -10.123456
#: Vectors of 4,096 numbers, and how many of them go into an event.
RANK = b64encode(pack("<f", SCORE)).decode()
VECTOR, EVENT_TEXTS = b64encode(pack("<4096f", *(SCORE + number for number in range(4096)))).decode(), 24


def full_events(job_id: str, epoch: int, seq: int, job: GenerationJob) -> list[Event]:
    """The events of a job whose outputs all have their full length, and their scores."""
    asked = job.sampling
    same: dict[str, Any] = {"job": job_id, "epoch": epoch}
    num_prompt = _num_prompt(job)
    pieces = {number: f"ab{number:02}" for number in range(64)}
    echoed: dict[str, Any] = {}
    if job.echo:
        echoed = {
            "prompt_ids": _ids(num_prompt),
            "prompt_text": job.prompt or WORD * num_prompt,
            "pieces": pieces,
        }
    about = {"attempt": 1, "worker": "w", "model": "m", "seed": 1, "n": asked.n}
    events: list[Event] = [Started(at_ms=1, seq=seq + 1, prompt_tokens=num_prompt, **about, **echoed, **same)]
    prompt: dict[str, Any] = {}
    if asked.prompt_logprobs is not None:
        prompt = {"prompt_logprobs": (SCORE,) * (num_prompt - 1)}
        prompt |= {"top_prompt_logprobs": (_top(asked.prompt_logprobs),) * (num_prompt - 1)}
    for choice in range(asked.n):
        for start in range(0, max(1, asked.max_tokens), EVENT_TOKENS):
            ids = _ids(min(EVENT_TOKENS, asked.max_tokens - start))
            own: dict[str, Any] = {"ids": ids, "text": WORD * len(ids), "choice": choice}
            if asked.logprobs:
                own |= {"logprobs": (SCORE,) * len(ids), "pieces": pieces}
                own |= {"top_logprobs": (_top(asked.top_logprobs),) * len(ids)}
            events.append(Token(seq=seq + 1 + len(events), i=start, **own, **prompt, **same))
            prompt = {}
    num_out = asked.n * asked.max_tokens
    usage = Usage(prompt_tokens=num_prompt, completion_tokens=num_out, total_tokens=num_prompt + num_out)
    last = {"finish_reason": "length", "n": num_out, "attempts": 1, "usage": usage}
    return [*events, End(seq=seq + 1 + len(events), **last, **same)]


def full_vectors(job_id: str, epoch: int, seq: int, job: TextJob) -> list[Event]:
    """The events of a job with texts, whose vectors are as wide as any model's; ranks have one number."""
    same: dict[str, Any] = {"job": job_id, "epoch": epoch}
    about = {"attempt": 1, "worker": "w", "model": "m", "seed": 1, "texts": job.num_texts}
    events: list[Event] = [Started(at_ms=1, seq=seq + 1, prompt_tokens=job.num_texts, **about, **same)]
    for first in range(0, job.num_texts, EVENT_TEXTS):
        texts = tuple(range(first, min(first + EVENT_TEXTS, job.num_texts)))
        events.append(
            Vectors(
                seq=seq + 1 + len(events),
                texts=texts,
                vectors=(VECTOR if isinstance(job, EmbeddingJob) else RANK,) * len(texts),
                **same,
            )
        )
    usage = Usage(prompt_tokens=job.num_texts, completion_tokens=0, total_tokens=job.num_texts)
    last = {"finish_reason": "stop", "n": job.num_texts, "attempts": 1, "usage": usage}
    return [*events, End(seq=seq + 1 + len(events), **last, **same)]


def _num_prompt(job: GenerationJob) -> int:
    """As many as there can be: a byte each, up to the scores that a worker gives."""
    num = len(job.prompt_ids or ()) or max(1, job.num_prompt_bytes)
    top = job.sampling.prompt_logprobs
    return num if top is None else min(num, MAX_PROMPT_SCORES // (1 + top))


def _ids(num: int) -> tuple[int, ...]:
    return tuple(number % 64 for number in range(num))


def _top(num: int) -> tuple[tuple[int, float], ...]:
    return tuple((number, SCORE - number) for number in range(num))


class FullStandIn(StandIn):
    """A worker without a model whose answers are as long as they can be."""

    def _entries(self, job_id: str, claim: Claimed) -> list[EmitEntry]:
        job = parse_job(claim.body, Settings())
        full = full_vectors if isinstance(job, TextJob) else full_events
        num_ids, entries = claim.n, list[EmitEntry]()
        for event in full(job_id, claim.epoch, claim.seq, job):  # type: ignore[arg-type]
            entries.append(EmitEntry.from_event(event, num_ids))
            num_ids += num_recorded(event)
        return entries


if __name__ == "__main__":
    import sys

    FullStandIn(sys.argv[1], *sys.argv[2:3]).run()
