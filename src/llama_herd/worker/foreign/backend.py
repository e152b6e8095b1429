"""Backend: what a server of one kind can do, and how it is asked. No field passes that is not named."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from hashlib import sha256
from typing import ClassVar, Literal, NamedTuple

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob, Prompt
from llama_herd.tasks.protocol.structured_outputs import FormKind, OutputForm
from llama_herd.tasks.protocol.terms import Notices, Terms
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.foreign.http import Answer, ConnectionLost, HttpServer, ServerAway

#: How long a server may take to say that it is well, or what it serves; a busy one takes some time.
HEALTH_S, FACTS_S = 10.0, 30.0

#: Most tokens of an output that come together.
MOST_TOGETHER = 16

#: Most characters of a server's complaint in a job's error.
MAX_COMPLAINT = 300

#: A server that cannot take a request now, and those of a key that is wrong: more than one job is concerned.
BUSY, FORBIDDEN = (429, 503), (401, 403)
#: What a proxy says of a server that does not answer.
GONE = (502, 504)


class KeyRefused(ServerAway):
    """The server wants another key: no job can be computed."""


class JobRefused(Exception):
    """The server does not take this request: it is the job's fault."""


class ServerFault(Exception):
    """The server failed while it computed this request, and says so."""


class ServerBusy(Exception):
    """The server takes no request now."""


class FieldUse(NamedTuple):
    """What becomes of a field of a job: it is passed on, we do it, or it is refused unless it is left out."""

    how: Literal["passed", "ours", "refused"]
    note: str = ""


PASSED, OURS = FieldUse("passed"), FieldUse("ours")

#: Fields that no server hears of: a prompt comes as ids, and terms are the queue's.
OUR_FIELDS = {
    **dict.fromkeys((*Prompt.model_fields, *Terms.model_fields, *Notices.model_fields), OURS),
    "sampling.n": FieldUse("ours", "a request for each output"),
    "sampling.stop": OURS,
    "sampling.truncate_prompt_tokens": OURS,
    "tool_choice": FieldUse("ours", "auto and none: nothing makes the server call a tool"),
}


class ServerFacts(NamedTuple):
    """What a server says of itself."""

    model: str
    max_length: int  # tokens of prompt and output together
    num_rows: int | None = None  # that it computes at a time; None: it does not say
    takes_priorities: bool = False
    version: str = ""


#: Why a server ends an output.
Reason = Literal["stop", "length"]


class Generated(NamedTuple):
    """How a server says that an output has ended; num_cached: prompt tokens that its cache had."""

    finish_reason: Reason
    num_cached: int | None = None


#: Takes new tokens of a sequence.
TakeTokens = Callable[[list[SampledToken]], None]


class Backend(ABC):
    """A server of one kind. Its coroutines run on one loop, and raise ServerAway and what is named above."""

    name: ClassVar[str]
    fields: ClassVar[Mapping[str, FieldUse]]
    forms: ClassVar[Collection[FormKind]]

    def __init__(self, server: HttpServer) -> None:
        self.server = server

    @abstractmethod
    async def facts(self, wanted: str, *, is_new: bool) -> ServerFacts:
        """Ask what the server serves. wanted: the model that is meant, if it serves several.

        is_new: also try what only a request shows, which may wait behind others.
        """

    @abstractmethod
    async def tokenize(self, text: str) -> list[int] | None:
        """Ask for the ids of a text that nothing is added to; None: the server does not tell."""

    @abstractmethod
    async def generate(self, sequence: Sequence, take: TakeTokens, gap_s: float) -> Generated:
        """Have an output continued behind the ids that it has, until the server ends it or it has ended.

        gap_s: between two tokens of an output, of late; inf: not known yet.
        """

    async def kv_cache_usage(self) -> float | None:
        """The share of the server's KV cache that is in use; None: it does not tell."""
        return None

    def form_as_kept(self, form: OutputForm) -> OutputForm:
        """The form that an answer has if the server keeps this one."""
        return form

    async def check_health(self) -> None:
        """Raise ServerAway unless the server is well."""
        answer = await self.server.get("/health", HEALTH_S)
        if answer.status != 200:
            raise ServerAway(f"/health answers {answer.status}: {complaint_of(answer)}")

    def check(self, job: GenerationJob) -> None:
        """Raise InvalidJob, which names each field that this server cannot do."""
        if wrong := list(self._refusals(job)):
            raise InvalidJob(wrong)

    def _refusals(self, job: GenerationJob) -> Iterator[FieldError]:
        for field, use in self.fields.items():
            if use.how == "refused" and not _is_default(job, field):
                yield self.refusal(field, use.note)

    def refusal(self, field: str, note: str = "") -> FieldError:
        why = f"cannot be done by {self.name}{': ' if note else ''}{note}"
        return FieldError(field, f"{why}. Fix: leave it out, or a worker with HERD_ENGINE=own")


def _is_default(job: GenerationJob, field: str) -> bool:
    _, _, name = field.rpartition("sampling.")
    holder = job.sampling if name != field else job
    return bool(getattr(holder, name) == type(holder).model_fields[name].get_default())


def checked(answer: Answer) -> Answer:
    """An answer that is one. Raises what it says else."""
    if answer.status == 200:
        return answer
    complaint = f"{answer.status}: {complaint_of(answer)}"
    if answer.status in FORBIDDEN:
        raise KeyRefused(f"HERD_ENGINE_API_KEY: the server refuses it, {complaint}")
    if answer.status in BUSY:
        raise ServerBusy(complaint)
    raise (JobRefused if answer.status < 500 else ServerFault)(complaint)


def generated(answer: Answer) -> Answer:
    """A checked answer to a request for tokens.

    Raises also ServerAway where the model is not known, which may come back, and ConnectionLost where a proxy
    says that its server has gone.
    """
    if answer.status == 404:
        raise ServerAway(f"it does not serve the model: {complaint_of(answer)}")
    if answer.status in GONE:
        raise ConnectionLost(f"{answer.status}: {complaint_of(answer)}")
    return checked(answer)


def complaint_of(answer: Answer) -> str:
    """The message of an error, as both kinds of servers write it."""
    return complaint_in(answer.json) or answer.content[:MAX_COMPLAINT].decode(errors="replace")


def complaint_in(content: object) -> str:
    match content:
        case {"error": {"message": str(message)}} | {"error": str(message)} | {"message": str(message)}:
            return message[:MAX_COMPLAINT]
        case {"error": _}:
            return "an error without a message"
    return ""


def derived_seed(sequence: Sequence, num_bits: int) -> int:
    """The seed of a request: the job's for the first one of its first output, then one that follows from it.

    A server's noise begins anew with each request: the same seed would draw the same noise again.
    """
    if not sequence.ids and not sequence.choice and 0 <= sequence.seed < 1 << num_bits:
        return sequence.seed
    text = f"{sequence.seed}:{sequence.choice}:{len(sequence.ids)}"
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> (64 - num_bits)
