"""ScriptedModel: in a worker it stands where a model stands, and its outputs are those of a script."""

from collections.abc import Callable, Sequence as Rows
from dataclasses import dataclass

from llama_herd.errors import GenerationError
from llama_herd.model.pages import PAGE_TOKENS, Pages, pages_for
from llama_herd.model.prefix_cache import PrefixCache
from llama_herd.model.shape.pooling import Pooling
from llama_herd.model.shape.purpose import Embeds
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.ranking_job import RankingJob
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.tasks.protocol.text_job import TextJob
from llama_herd.testing.answer import Answer
from llama_herd.testing.output import FORMATS, output_of
from llama_herd.testing.script import AskedJob
from llama_herd.testing.scripted_engine import (
    NUM_DIMENSIONS,
    HasRecorded,
    PacedEngine,
    RankedSequence,
    ScriptedRunner,
    ScriptedSequence,
    scripted_logit,
)
from llama_herd.testing.vocabulary import EOS_ID, Vocabulary
from llama_herd.worker.engine.interface import Sink
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import PLAIN, Handling, Sequence
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.loading.chats import ChatOutputs
from llama_herd.worker.loading.sequence_maker import SequenceMaker, is_nothing_computed
from llama_herd.worker.loading.text_sequences import TextMaker
from llama_herd.worker.settings import MAX_PREFILL_TOKENS, WorkerSettings

#: Tokens of the longest sequence, unless HERD_CONTEXT_TOKENS says another number.
CONTEXT_TOKENS = 32_768

#: Gives a job its answer. Raises GenerationError.
Ask = Callable[[AskedJob], Answer]


@dataclass(frozen=True)
class ScriptedSize:
    """The size of a model that is none: so many tokens, and no bytes."""

    max_length: int
    kv_cache_tokens: int
    dtype: str = "none"
    keeps_blocks: bool = False
    num_bytes: int = 0

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> "ScriptedSize":
        max_length = settings.context_tokens or CONTEXT_TOKENS
        num_pages = pages_for(settings.kv_cache_tokens or settings.slots * max_length)
        return cls(max_length, num_pages * PAGE_TOKENS)


class FreeForms:
    """In the place of `Grammars`: nothing is enforced, since a script may say what it likes."""

    def __init__(self) -> None:
        self.figures = GrammarFigures()

    def constraints(self, form: OutputForm, num: int) -> Rows[None]:
        return [None] * num

    def close(self) -> None: ...


class ScriptedTexts(TextMaker):
    """Makes sequences of texts and of documents, where a model is for either."""

    def check_generates(self) -> None:
        """It does all that a model can."""

    def _pairing(self, query: str, chat: object) -> Callable[[str], list[int]]:
        return lambda document: self.tokenizer.encode(f"{query}\n{document}")


@dataclass(frozen=True)
class ScriptedMaker(SequenceMaker):
    """Makes sequences as of any model, and asks for what each is to say."""

    model: str
    ask: Ask

    @classmethod
    def of(cls, model: str, size: ScriptedSize, ask: Ask) -> "ScriptedMaker":
        words, room = Vocabulary(), min(size.max_length, size.kv_cache_tokens)
        return cls(
            tokenizer=words,
            chat=None,
            chat_complaint="",
            outputs=ChatOutputs(FORMATS, words.pieces, {}),
            grammars=FreeForms(),
            max_length=size.max_length,
            kv_cache_tokens=size.kv_cache_tokens,
            control_ids={},
            tokenizer_info=None,
            sampling={},
            texts=ScriptedTexts(words, Embeds(Pooling.LAST), NUM_DIMENSIONS, room),
            weights_digest="",
            model=model,
            ask=ask,
        )

    def sequences(
        self, job_id: str, job: Job, now_ms: int, due_ms: int | None = None, handling: Handling = PLAIN
    ) -> list[Sequence]:
        """Of what follows from a job alone nothing is asked: vectors, ranks, the ids of its prompt."""
        made = super().sequences(job_id, job, now_ms, due_ms, handling)
        if isinstance(job, RankingJob):
            logits = (scripted_logit(job.query, document) for document in job.documents)
            return [RankedSequence.of(one, logit=logit) for one, logit in zip(made, logits, strict=True)]
        if isinstance(job, TextJob) or is_nothing_computed(job):
            return made
        answer = self.ask(AskedJob(job_id, job.tenant, self.model, job))
        if answer.error and not answer.after_tokens:
            raise GenerationError(answer.error, answer.message)
        ids = (*self.tokenizer.encode(output_of(answer, job)), EOS_ID)
        return [ScriptedSequence.of(one, answer=answer, scripted_ids=ids) for one in made]

    def _chat_ids(self, job: GenerationJob, due_ms: int | None) -> list[int]:
        """The ids of a chat, without any model's template."""
        turns = (f"{one.role}: {' '.join(one.texts)}\n" for one in job.messages or ())
        return self.tokenizer.encode("".join((*turns, "assistant:")))


class ScriptedModel:
    """What a worker serves in place of a model: the answers that `ask` gives."""

    needs_warm_up = False

    def __init__(self, settings: WorkerSettings, ask: Ask, has_recorded: HasRecorded) -> None:
        """`has_recorded` says whether so many tokens of a sequence are in its job's stream."""
        self.plan = ScriptedSize.from_settings(settings)
        self.maker = ScriptedMaker.of(settings.served_model, self.plan, ask)
        self._has_recorded = has_recorded

    def job_engine(self, settings: WorkerSettings, sink: Sink) -> EngineThread:
        """The engine of any worker, on a runner that computes nothing."""
        pages = Pages(self.plan.kv_cache_tokens // PAGE_TOKENS, consecutive=False)
        return EngineThread(
            PacedEngine(
                ScriptedRunner(self._has_recorded),
                PrefixCache(pages, is_on=False),  # what one test has asked is nothing to the next
                max_rows=settings.slots,
                prefill=PrefillBudget(MAX_PREFILL_TOKENS),
                sink=sink,
            )
        )

    def settle(self) -> None: ...

    def close(self) -> None: ...
