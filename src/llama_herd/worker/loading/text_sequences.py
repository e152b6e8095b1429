"""What a model that embeds or ranks makes of a job with texts: a sequence for each, without tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence as Rows
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.model.prefix_cache import num_common
from llama_herd.model.shape.purpose import Embeds, Generates, Purpose, Ranks
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import seed_of
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.text_job import TextJob
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.sequence import PLAIN, Handling, Sequence, VectorForm

if TYPE_CHECKING:
    from llama_herd.model.text.chat import ChatTemplates

FLOAT_BYTES = 4
SHORTER = "Fix: shorten it"
NOTHING = "has no token of its own. Fix: leave it out"
#: What a text asks of the sampler: nothing.
NO_TOKENS = SamplingParams(max_tokens=0)


class ModelTokenizer(Protocol):
    """Texts to ids and back, as jobs need it; `Tokenizer` says what each is."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def first_ids(self) -> tuple[int, ...]: ...

    @property
    def pieces(self) -> Rows[bytes]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]: ...

    def text_of(self, ids: Iterable[int]) -> str: ...


class Around(NamedTuple):
    """The ids that stand before and behind each text of a job."""

    before: list[int]
    behind: list[int]


@dataclass(frozen=True)
class TextMaker:
    """Makes sequences of texts. room: most tokens of one."""

    tokenizer: ModelTokenizer
    purpose: Purpose
    num_dimensions: int  # of a whole vector
    room: int

    def sequences(
        self,
        job_id: str,
        job: TextJob,
        deadline_s: float | None,
        chat: "ChatTemplates | None" = None,
        handling: Handling = PLAIN,
    ) -> list[Sequence]:
        """One sequence for each text, in their order. chat: renders a query and a document.

        Raises InvalidJob or GenerationError.
        """
        sequence_of = partial(
            Sequence,
            job_id=job_id,
            params=NO_TOKENS,
            seed=seed_of(job_id),
            max_length=self.room,
            eos_ids=frozenset(),
            detokenizer=Detokenizer((), ()),
            deadline_s=deadline_s,
            tenant=job.tenant,
            priority=job.priority,
            handling=handling,
        )
        texts = self._ranked(job, chat) if isinstance(job, RankingJob) else self._embedded(job)
        return [
            sequence_of(prompt_ids=ids, choice=number, vector=form)
            for number, (ids, form) in enumerate(texts)
        ]

    def _embedded(self, job: TextJob) -> list[tuple[list[int], VectorForm]]:
        """The ids of texts that become vectors, and how."""
        purpose = self.purpose
        if not (isinstance(purpose, Embeds) and isinstance(job, EmbeddingJob)):
            raise self._other("makes no vectors. Fix: a model that embeds")
        if job.dimensions is not None and job.dimensions > self.num_dimensions:
            message = f"must be at most {self.num_dimensions}, as many as this model's vectors have"
            raise InvalidJob([FieldError("dimensions", f"{message}, got {job.dimensions}")])
        prompt = _prompt(purpose, job.prompt_name) if job.texts else ""
        around = self._around(prompt) if job.texts else Around([], [])
        num_skipped = len(around.before) if prompt and not purpose.pools_prompt else 0
        texts = []
        for number, ids in enumerate(self._ids(job, prompt, around)):
            wanted = purpose.pooling.wanted(len(ids), num_skipped)
            if not 0 <= wanted.start < wanted.stop <= len(ids):
                raise InvalidJob([FieldError(f"texts.{number}", NOTHING)])
            form = VectorForm(wanted.start, job.dimensions, num_common(around.before, ids))
            texts.append((ids[: wanted.stop], form))  # nothing depends on what follows
        return texts

    def _ranked(self, job: RankingJob, chat: "ChatTemplates | None") -> list[tuple[list[int], VectorForm]]:
        """The ids of documents, each in the template with the query. The last of them says the rank."""
        render = self._pairing(job.query, chat)
        before, texts = render(""), []
        for number, document in enumerate(job.documents):
            ids = render(document)
            if len(ids) > self.room:
                raise _too_long(f"documents.{number}, with the query", len(ids), self.room, SHORTER)
            texts.append((ids, VectorForm(len(ids) - 1, num_shared=num_common(before, ids))))
        return texts

    def _pairing(self, query: str, chat: "ChatTemplates | None") -> Callable[[str], list[int]]:
        """What makes ids of a document. Raises InvalidJob."""
        if not isinstance(self.purpose, Ranks) or chat is None:
            raise self._other("ranks nothing. Fix: a model that ranks")
        return partial(_pair_ids, chat, self.purpose.instruction, query)

    def _other(self, what: str) -> InvalidJob:
        """The error of a job that this model is not for."""
        return InvalidJob([FieldError("kind", f"this model {self.purpose.sentence}, and {what}")])

    @property
    def vector_chars(self) -> int:
        """Characters of a whole vector in Base64."""
        return 0 if isinstance(self.purpose, Generates) else -(-FLOAT_BYTES * self.num_dimensions // 3) * 4

    def check_generates(self) -> None:
        """Raise InvalidJob if the model writes no text."""
        if not isinstance(self.purpose, Generates):
            message = f"this model {self.purpose.sentence}, and writes no text. Fix: a model that generates"
            raise InvalidJob([FieldError("prompt", message)])

    def _around(self, prompt: str) -> Around:
        """The prompt between what the model's files put around a text, as sentence-transformers counts it."""
        first = list(self.tokenizer.first_ids)
        behind = self.tokenizer.encode("")[len(first) :]
        return Around(first + self.tokenizer.encode(prompt, add_bos=False), behind)

    def _ids(self, job: EmbeddingJob, prompt: str, around: Around) -> Iterator[list[int]]:
        """The ids of each text, at most as many as there is room for."""
        if job.text_ids is not None:
            found = [list(ids) for ids in job.text_ids]
            highest = max(max(ids) for ids in found)
            if highest >= self.tokenizer.vocab_size:
                raise InvalidJob([FieldError("text_ids", self._foreign(highest))])
        else:
            found = [self.tokenizer.encode(prompt + text) for text in job.texts or ()]
        most = self.purpose.max_tokens if isinstance(self.purpose, Embeds) else None
        room = min(self.room, most or self.room)
        for number, ids in enumerate(found):
            yield ids if len(ids) <= room else _cut(ids, number, job, around, room)

    def _foreign(self, highest: int) -> str:
        return (
            f"ids must be below {self.tokenizer.vocab_size}, the size of the vocabulary, got {highest}. Fix: "
            "send texts, or ids of this model; LangChain sends texts with check_embedding_ctx_length=False"
        )


def _cut(ids: list[int], number: int, job: EmbeddingJob, around: Around, room: int) -> list[int]:
    """A text that is too long, cut where the job says so; what stands around it stays.

    Raises GenerationError if the job does not say, or nothing of the text would be left.
    """
    before, behind = around
    if job.truncate is None or room <= len(before) + len(behind):
        source = "texts" if job.texts is not None else "text_ids"
        fix = f"{SHORTER}, or set truncate" if job.truncate is None else "Fix: a shorter prompt"
        raise _too_long(f"{source}.{number}", len(ids), room, fix)
    if job.truncate == "end":
        return ids[: room - len(behind)] + behind
    return before + ids[len(ids) - room + len(before) :]


def _too_long(source: str, num_tokens: int, room: int, fix: str) -> GenerationError:
    message = f"{source}: {num_tokens} tokens, but a text may have at most {room}. {fix}"
    return GenerationError(ErrorCode.PROMPT_TOO_LONG, message)


def _pair_ids(chat: "ChatTemplates", instruction: str, query: str, document: str) -> list[int]:
    """The ids of the template around the two, none of whose texts becomes a control token."""
    from llama_herd.model.text.chat import Chat  # with all that renders templates

    told = [{"role": "system", "content": instruction}] if instruction else []
    asked = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    return chat.encode(Chat([*told, *asked]))


def _prompt(purpose: Embeds, name: str | None) -> str:
    """What is put before each text. Raises InvalidJob for a name that the model's files do not have."""
    if name is None:
        return purpose.prompts.get(purpose.default_prompt or "", "")
    if name not in purpose.prompts:
        meant = did_you_mean(close_names(name, purpose.prompts)) or "."
        known = ", ".join(sorted(purpose.prompts)) or "none"
        raise InvalidJob([FieldError("prompt_name", f"no such prompt{meant} The model has: {known}")])
    return purpose.prompts[name]
