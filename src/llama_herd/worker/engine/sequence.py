"""One output of a job inside the engine: its request, its tokens so far, and whether it has ended."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.model.prefix_cache import Digest, PageCopy, page_digest, root_digest
from llama_herd.tasks.protocol.events import FinishReason, StopReason
from llama_herd.tasks.protocol.priority import can_wait
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.interface import SampledToken, SequenceInfo
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.row import Penalties, SamplingRow

NewParser = Callable[[], OutputParser]


@dataclass(frozen=True, slots=True)
class VectorForm:
    """What the vector of a text is to be: the mean of what its tokens from `first` on come to.

    dimensions: its first so many are kept; None: all. num_shared: the text's first tokens that other texts
    have, too. No more of it serves others: pages of a whole corpus would push out all that is worth keeping.
    """

    first: int
    dimensions: int | None = None
    num_shared: int = 0


@dataclass(frozen=True, slots=True)
class Handling:
    """How the attempt at a job wants its sequences handled, where the job itself does not say it.

    line: what each line of the log says of the job; empty: its id and its tenant. gather_s: how long tokens
    may be gathered for one event. time_limit_s: from admission. awaits_start: whether nothing is computed
    before `Engine.confirm` says that the job's start is on record.
    """

    line: Mapping[str, object] = field(default_factory=dict)
    gather_s: float = 0.0
    time_limit_s: float | None = None
    awaits_start: bool = False


#: As for a job that no queue has brought: it is computed at once, and each token is an event.
PLAIN = Handling()


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence. Once it is submitted, only the engine's thread touches it; others have its `info`.

    A job with several outputs has one sequence for each, and these share the prompt's prefill. A job with
    texts has one for each of them, which ends with a vector and no token.
    """

    job_id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    max_length: int
    eos_ids: frozenset[int]
    detokenizer: Detokenizer
    new_parser: NewParser | None = None  # makes what reads the text of its job's outputs; None: nothing does
    constraint: Constraint | None = None  # what a schema or a grammar lets follow, as far as `ids` go
    deadline_s: float | None = None  # on the clock of time.monotonic
    tenant: str = ""  # sequences of different tenants share no pages
    priority: int = 0  # higher is admitted first
    handling: Handling = PLAIN
    choice: int = 0  # number of the output, or of the text
    vector: VectorForm | None = None  # of a text: what its vector is to be; None: its tokens continue
    ids: list[int] = field(init=False, default_factory=list)
    slot: int = field(init=False, default=-1)  # its place in the device's table, while it holds pages
    pages: tuple[int, ...] = field(init=False, default=())
    copies: tuple[PageCopy, ...] = field(init=False, default=())
    digests: list[Digest] = field(init=False, default_factory=list)
    num_cached: int = field(init=False, default=0)  # tokens that are computed, or will be by what is launched
    num_published: int = field(init=False, default=0)  # pages that may serve others
    num_drawing: int = field(init=False, default=0)  # tokens being drawn: its own, but not in `ids` yet
    num_flying: int = field(init=False, default=0)  # launched steps of it that were not read yet
    pooled: object = field(init=False, default=None)  # of a text in parts: what the runner has of it
    num_preemptions: int = field(init=False, default=0)  # how often a more urgent one took its place
    arrival: int = field(init=False, default=-1)  # its number among all that wait; kept when it waits again
    prompt_scores: list[SampledToken] = field(init=False, default_factory=list)
    finish_reason: FinishReason | None = field(init=False, default=None)
    stop_reason: StopReason = field(init=False, default=None)
    drawn_s: float | None = field(init=False, default=None)  # when its last token was drawn
    begun_s: float = field(init=False, default=0.0)  # when it was admitted first; both on the engine's clock
    has_begun: bool = field(init=False, default=False)  # its start was announced, which is so once
    is_confirmed: bool = field(init=False)  # False: not computed yet, since its start is not on record
    info: SequenceInfo = field(init=False)
    penalties: Penalties | None = field(init=False)  # the tokens they look at grow with `ids`

    def __post_init__(self) -> None:
        self.info = SequenceInfo(self.job_id, self.tenant, self.choice, self.seed, len(self.prompt_ids))
        self.is_confirmed = not self.handling.awaits_start
        self.penalties = Penalties.if_any(self.params, self.prompt_ids)
        if not self.params.max_tokens and not self.scores_prompt and self.vector is None:
            self.end_without_output()

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def line(self) -> Mapping[str, object]:
        """What each line of the log says of its job."""
        return self.handling.line or {"job_id": self.job_id, "tenant": self.tenant}

    @property
    def job(self) -> tuple[str, str]:
        """Names its job: two tenants may use the same id."""
        return self.tenant, self.job_id

    @property
    def can_wait(self) -> bool:
        """Whether nobody waits for its next token, as for none of a batch."""
        return can_wait(self.priority)

    @property
    def has_prompt_cached(self) -> bool:
        """Whether the prompt is computed as far as other outputs of the job can use it."""
        return self.num_cached >= len(self.prompt_ids) - 1

    @property
    def scores_prompt(self) -> bool:
        """Whether its prompt's log-probabilities are still to be computed; the first token brings them.

        With a `max_tokens` of 0 that token is drawn and dropped.
        """
        return self.params.prompt_logprobs is not None and self.choice == 0 and not self.ids

    @property
    def num_shareable(self) -> int:
        """The first tokens of which full pages may serve others, and be taken from others."""
        return self.length if self.vector is None else min(self.vector.num_shared, self.vector.first)

    @property
    def num_dimensions(self) -> int | None:
        """How many numbers of a text's vector are wanted; None: all."""
        return None if self.vector is None else self.vector.dimensions

    @property
    def num_pooled(self) -> int:
        """Of how many tokens a text's vector is the mean."""
        return len(self.prompt_ids) - (0 if self.vector is None else self.vector.first)

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.ids)

    @property
    def num_uncached(self) -> int:
        """Tokens that must go through the model before the next one can be drawn."""
        return self.length + self.num_drawing - self.num_cached

    @property
    def decodes(self) -> bool:
        """Whether a step with one token of it draws the next one. A text's last token draws none."""
        return self.num_uncached == 1 and self.vector is None

    @property
    def is_full(self) -> bool:
        """Whether the tokens that are being drawn are its last ones."""
        num_ids = len(self.ids) + self.num_drawing
        return num_ids >= self.params.max_tokens or len(self.prompt_ids) + num_ids >= self.max_length

    @property
    def is_ready(self) -> bool:
        """Whether a step may have it: its start is on record, and more can be drawn than is being drawn.

        Under a constraint nothing can before the last token is known here.
        """
        is_held = self.num_drawing and (self.is_full or self.constraint is not None)
        return self.is_confirmed and not is_held

    @property
    def num_reserved(self) -> int:
        """Tokens that the cache must have room for: the prompt and all that may follow."""
        return min(len(self.prompt_ids) + self.params.max_tokens, self.max_length)

    def give_up_place(self) -> None:
        """Forget what the device and the cache knew of it: it is computed again from its ids."""
        self.slot, self.pages, self.copies = -1, (), ()
        self.num_cached = self.num_published = 0
        self.pooled = None

    def note_admitted(self) -> None:
        """Start the clock of its time limit."""
        if (limit_s := self.handling.time_limit_s) is not None:
            self.deadline_s = min(self.deadline_s or inf, monotonic() + limit_s)

    @property
    def is_overdue(self) -> bool:
        return self.deadline_s is not None and monotonic() >= self.deadline_s

    def tokens(self, start: int, stop: int) -> list[int]:
        """The ids of prompt and completion from position `start` up to `stop`."""
        num_prompt = len(self.prompt_ids)
        if start >= num_prompt:
            return self.ids[start - num_prompt : stop - num_prompt]
        return self.prompt_ids[start:stop] + self.ids[: max(0, stop - num_prompt)]

    def digest_pages(self, num_tokens: int) -> list[Digest]:
        """The digests of the full pages of the first `num_tokens` tokens."""
        num_pages = num_tokens // PAGE_TOKENS
        for page in range(len(self.digests), num_pages):
            before = self.digests[-1] if page else root_digest(self.tenant)
            ids = self.tokens(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)
            self.digests.append(page_digest(before, ids))
        return self.digests[:num_pages]

    def append(self, token_id: int) -> str:
        """Add a drawn token and return the text that may be shown now. The last one sets `finish_reason`.

        Raises GenerationError if the job's grammar does not let it follow.
        """
        if self.constraint is not None:
            self.constraint.add(token_id)
        self.ids.append(token_id)
        if self.penalties is not None:
            self.penalties.add(token_id)
        may_stop = len(self.ids) > self.params.min_tokens
        is_stop = may_stop and token_id in self.params.stop_token_ids
        text = "" if is_stop else self.detokenizer.write(token_id, may_stop=may_stop)
        is_end = is_stop or (may_stop and self._is_eos(token_id)) or self._is_through
        is_full = len(self.ids) >= self.params.max_tokens or self.length >= self.max_length
        if is_end or is_full:
            text += self.detokenizer.finish()  # in which a stop string may show
        if is_end or self.detokenizer.has_stopped:
            self.finish_reason = "stop"
            self.stop_reason = token_id if is_stop else self.detokenizer.met or None
        elif is_full:
            self.finish_reason = "length"
            self.stop_reason = "max_tokens" if len(self.ids) >= self.params.max_tokens else "context"
        return text

    def end_here(self, finish_reason: FinishReason, stop_reason: StopReason = None) -> str:
        """End the sequence without a further token, as its server has; return the text that was withheld.

        A stop string that shows in it ends it instead.
        """
        text = self.detokenizer.finish()
        if self.detokenizer.has_stopped:
            finish_reason, stop_reason = "stop", self.detokenizer.met
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        return text

    def end_without_output(self) -> None:
        """End the sequence without an output: its `max_tokens` of 0 are used up."""
        self.finish_reason, self.stop_reason = "length", "max_tokens"

    def sampling_row(self) -> SamplingRow:
        """Return the sequence's state for sampling: what its next token depends on besides its logits."""
        position = len(self.ids) + self.num_drawing
        return SamplingRow(
            self.params, self.seed, position, self.penalties, self.eos_ids, self.choice, self.constraint
        )

    @property
    def _is_through(self) -> bool:
        """Whether its grammar lets nothing follow."""
        return self.constraint is not None and self.constraint.is_over

    def _is_eos(self, token_id: int) -> bool:
        return token_id in self.eos_ids and not self.params.ignore_eos

    def replay(self, ids: Iterable[int], end: tuple[FinishReason, StopReason] | None = None) -> str:
        """Add ids that an earlier attempt has recorded; return their text, which the stream already holds.

        end: the recorded one; what the ids do not end, a server has.
        """
        text = "".join(self.append(token_id) for token_id in ids)
        return text if end is None or self.finish_reason is not None else text + self.end_here(*end)
