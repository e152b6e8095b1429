"""What a model that embeds makes of a job with texts: a sequence for each, which ends with a vector."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.purpose import Embeds, Purpose
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import seed_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.sequence import Sequence, VectorForm

FLOAT_BYTES = 4
SHORTER = "Fix: shorten it, or set truncate"
NOTHING = "has no token of its own. Fix: leave it out"
#: What a text asks of the sampler: nothing.
NO_TOKENS = SamplingParams(max_tokens=0)


class TextTokenizer(Protocol):
    """Texts to ids, as texts need it; `Tokenizer` says what each is."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]: ...


@dataclass(frozen=True)
class TextMaker:
    """Makes sequences of texts. max_length: most tokens of one; num_pages: of the KV cache."""

    tokenizer: TextTokenizer
    purpose: Purpose
    num_dimensions: int  # of a whole vector
    max_length: int
    num_pages: int
    generates: bool  # whether it takes other jobs, too

    def sequences(self, job_id: str, job: EmbeddingJob, deadline_s: float | None) -> list[Sequence]:
        """One sequence for each text, in their order. Raises InvalidJob or GenerationError."""
        purpose = self.purpose
        if not isinstance(purpose, Embeds):
            message = f"this model {purpose.sentence}, and makes no vectors. Fix: a model that embeds"
            raise InvalidJob([FieldError("kind", message)])
        if job.dimensions is not None and job.dimensions > self.num_dimensions:
            message = f"must be at most {self.num_dimensions}, as many as this model's vectors have"
            raise InvalidJob([FieldError("dimensions", f"{message}, got {job.dimensions}")])
        prompt = _prompt(purpose, job.prompt_name) if job.texts else ""
        prompt_ids = self.tokenizer.encode(prompt) if prompt else []
        same: dict[str, Any] = {
            "job_id": job_id,
            "params": NO_TOKENS,
            "seed": seed_of(job_id),
            "max_length": self.max_length,
            "eos_ids": frozenset(),
            "detokenizer": Detokenizer((), ()),
            "deadline_s": deadline_s,
            "tenant": job.tenant,
            "priority": job.priority,
        }
        sequences = []
        for number, ids in enumerate(self._ids(job, prompt, purpose.max_tokens)):
            num_prompt = _num_common(prompt_ids, ids)
            wanted = purpose.pooling.wanted(len(ids), 0 if purpose.pools_prompt else num_prompt)
            if not 0 <= wanted.start < wanted.stop <= len(ids):
                raise InvalidJob([FieldError(f"texts.{number}", NOTHING)])
            form = VectorForm(wanted.start, job.dimensions, num_prompt)
            # Nothing depends on what follows behind the last that is wanted.
            sequences.append(Sequence(prompt_ids=ids[: wanted.stop], choice=number, vector=form, **same))
        return sequences

    @property
    def vector_chars(self) -> int:
        """Characters of a whole vector in Base64."""
        return -(-FLOAT_BYTES * self.num_dimensions // 3) * 4 if isinstance(self.purpose, Embeds) else 0

    def check_generates(self) -> None:
        """Raise InvalidJob if the model writes no text."""
        if not self.generates:
            message = f"this model {self.purpose.sentence}, and writes no text. Fix: a model that generates"
            raise InvalidJob([FieldError("prompt", message)])

    def _ids(self, job: EmbeddingJob, prompt: str, most: int | None) -> list[list[int]]:
        """The ids of each text, at most as many as there is room for. most: by the model's files."""
        room = min(self.max_length, self.num_pages * PAGE_TOKENS, most or self.max_length)
        if job.text_ids is not None:
            found = [list(ids) for ids in job.text_ids]
            highest = max(max(ids) for ids in found)
            if highest >= self.tokenizer.vocab_size:
                raise InvalidJob([FieldError("text_ids", self._foreign(highest))])
        else:
            found = [self.tokenizer.encode(prompt + text) for text in job.texts or ()]
        return [
            ids if len(ids) <= room else self._cut(ids, number, job, room) for number, ids in enumerate(found)
        ]

    def _foreign(self, highest: int) -> str:
        return (
            f"ids must be below {self.tokenizer.vocab_size}, the size of the vocabulary, got {highest}. Fix: "
            "send texts, or ids of this model; LangChain sends texts with check_embedding_ctx_length=False"
        )

    def _cut(self, ids: list[int], number: int, job: EmbeddingJob, room: int) -> list[int]:
        """A text that is too long, cut where the job says so: what the tokenizer puts at its ends stays.

        Raises GenerationError if it does not.
        """
        if job.truncate is None:
            source = "texts" if job.texts is not None else "text_ids"
            message = f"{source}.{number}: {len(ids)} tokens, but a text may have at most {room}"
            raise GenerationError(ErrorCode.PROMPT_TOO_LONG, f"{message}. {SHORTER}")
        ends = self.tokenizer.encode("") if job.texts is not None and room > 1 else []
        if job.truncate == "end":
            last = ids[-1:] if ids[-1:] == ends[-1:] else []
            return ids[: room - len(last)] + last
        first = ids[:1] if ids[:1] == ends[:1] else []
        return first + ids[len(ids) - room + len(first) :]


def _num_common(one: Rows[int], other: Rows[int]) -> int:
    """How many ids both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _prompt(purpose: Embeds, name: str | None) -> str:
    """What is put before each text. Raises InvalidJob for a name that the model's files do not have."""
    if name is None:
        return purpose.prompts.get(purpose.default_prompt or "", "")
    if name not in purpose.prompts:
        meant = did_you_mean(close_names(name, purpose.prompts)) or "."
        known = ", ".join(sorted(purpose.prompts)) or "none"
        raise InvalidJob([FieldError("prompt_name", f"no such prompt{meant} The model has: {known}")])
    return purpose.prompts[name]
