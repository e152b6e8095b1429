"""What a model makes of a job: sequences for an engine. No tensor."""

from collections.abc import Collection, Mapping, Sequence as Rows
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.tasks.protocol.job import MAX_PROMPT_SCORES, SOURCES, GenerationJob, seed_of
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.tasks.protocol.text_job import TextJob
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sequence import PLAIN, Handling, Sequence
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.loading.chats import ChatOutputs, chat_of
from llama_herd.worker.loading.text_sequences import ModelTokenizer, TextMaker

NOT_SHOWN = "the worker does not show its chat template. Fix: start it with HERD_TOKENIZER_INFO=true"
if TYPE_CHECKING:
    from llama_herd.model.text.chat import ChatTemplates


class ConstraintMaker(Protocol):
    """Makes constraints of the forms that jobs ask for, as `Grammars` does."""

    @property
    def figures(self) -> GrammarFigures: ...

    def constraints(self, form: OutputForm, num: int) -> Rows[Constraint | None]: ...

    def close(self) -> None: ...


class EchoedPrompt(NamedTuple):
    """The prompt that a job gets back if it asks for `echo`: the fields of `Started`, but for the pieces."""

    prompt_ids: tuple[int, ...]
    prompt_text: str
    context_tokens: int
    tokenizer_info: TokenizerInfo | None = None


@dataclass(frozen=True)
class SequenceMaker:
    """Reads prompts, chats and forms of jobs as one model understands them. The preparing thread has it."""

    tokenizer: ModelTokenizer
    chat: "ChatTemplates | None"
    chat_complaint: str  # why chats are refused, where there is no `chat`
    outputs: ChatOutputs
    grammars: ConstraintMaker
    max_length: int  # of prompt and completion together, in tokens
    kv_cache_tokens: int
    control_ids: Mapping[str, int]  # of the control tokens, by their texts
    tokenizer_info: TokenizerInfo | None  # None: jobs may not ask for it
    sampling: Mapping[str, float]  # that the model's files recommend
    texts: TextMaker
    weights_digest: str  # of the model; empty: not known

    def sequences(
        self, job_id: str, job: Job, now_ms: int, due_ms: int | None = None, handling: Handling = PLAIN
    ) -> list[Sequence]:
        """Prepare a job for the engine: one sequence for each of its outputs, or of its texts.

        `now_ms` is the current time on the clock of the job's deadline. `due_ms` is the date that a chat
        template writes, the same at each attempt; None: today. Raises InvalidJob or GenerationError when this
        model cannot run the job.
        """
        ends_by_ms = job.ends_by(now_ms if due_ms is None else due_ms)
        deadline_s = None if ends_by_ms is None else monotonic() + (ends_by_ms - now_ms) / 1000
        if isinstance(job, TextJob):
            return self.texts.sequences(job_id, job, deadline_s, self.chat, handling)
        self.texts.check_generates()
        _check_vocabulary(job, self.tokenizer.vocab_size)
        if job.tokenizer_info and self.tokenizer_info is None:
            raise InvalidJob([FieldError("tokenizer_info", NOT_SHOWN)])
        prompt_ids = self._truncated(self._prompt_ids(job, due_ms), job.sampling)
        sequences = self._outputs(job_id, job, prompt_ids, deadline_s, handling)
        if sequences[0].finish_reason is None:  # else nothing of it is computed
            _check_length(sequences[0], job)
            _check_room(sequences[0], job, self.kv_cache_tokens)
        return sequences

    def _outputs(
        self,
        job_id: str,
        job: GenerationJob,
        prompt_ids: list[int],
        deadline_s: float | None,
        handling: Handling,
    ) -> list[Sequence]:
        """A sequence for each output behind this prompt. Raises InvalidJob or GenerationError."""
        form, num = self.outputs.form(job, prompt_ids), job.sampling.n
        constraints: Rows[Constraint | None] = [None] * num
        if form is not None:
            constraints = self.grammars.constraints(form, num)
        # To a form a leading space belongs.
        is_answer = job.messages is not None and job.output_form is None
        reading = self.outputs.reading(job, prompt_ids)
        pieces = self.tokenizer.pieces if reading is None else self.outputs.pieces
        return [
            Sequence(
                job_id=job_id,
                prompt_ids=prompt_ids,
                params=job.sampling,
                seed=seed_of(job_id) if job.sampling.seed is None else job.sampling.seed,
                max_length=self.max_length,
                eos_ids=self.tokenizer.eos_ids,
                detokenizer=Detokenizer(
                    pieces,
                    job.sampling.stop,
                    is_answer=is_answer,
                    reasoning_end=None if reading is None else reading.reasoning_end(),
                ),
                new_parser=None if reading is None else reading.new_parser,
                constraint=constraint,
                deadline_s=deadline_s,
                tenant=job.tenant,
                priority=job.priority,
                handling=handling,
                choice=choice,
            )
            for choice, constraint in enumerate(constraints)
        ]

    def echoed_prompt(self, job: Job, prompt_ids: list[int]) -> EchoedPrompt | None:
        """The prompt for the job's `started` event; None: not asked for. prompt_ids: of its sequences."""
        if isinstance(job, TextJob) or not job.echo:
            return None
        is_whole = job.sampling.truncate_prompt_tokens is None
        text = job.prompt if job.prompt is not None and is_whole else self.tokenizer.text_of(prompt_ids)
        info = self.tokenizer_info if job.tokenizer_info else None
        return EchoedPrompt(tuple(prompt_ids), text, self.room, info)

    def close(self) -> None:
        """End the helper processes that render chats and judge grammars."""
        self.grammars.close()
        if self.chat is not None:
            self.chat.close()

    @property
    def room(self) -> int:
        """Most tokens of prompt and output that there is room for."""
        return min(self.max_length, self.kv_cache_tokens)

    def _prompt_ids(self, job: GenerationJob, due_ms: int | None) -> list[int]:
        if job.prompt_ids is not None:
            return list(job.prompt_ids)
        if job.messages is None:
            text = job.prompt or ""
            if job.add_special_tokens is not False:
                return self.tokenizer.encode(text)
            if is_nothing_computed(job) and text in self.control_ids:
                return [self.control_ids[text]]
            return self.tokenizer.encode(text, add_bos=False)
        return self._chat_ids(job, due_ms)

    def _chat_ids(self, job: GenerationJob, due_ms: int | None) -> list[int]:
        if self.chat is None:
            raise GenerationError(
                ErrorCode.NO_CHAT_TEMPLATE, f"messages: {self.chat_complaint} Fix: send a prompt instead"
            )
        return self.chat.encode(chat_of(job, due_ms))

    def _truncated(self, prompt_ids: list[int], params: SamplingParams) -> list[int]:
        """The prompt, cut from the left if the job asks for it; a BOS at its front stays."""
        num_kept = params.truncate_prompt_tokens
        if num_kept == -1:
            num_kept = max(1, self.room - max(1, params.max_tokens))  # one is drawn behind scores, too
        if num_kept is None or len(prompt_ids) <= num_kept:
            return prompt_ids
        firsts = (self.tokenizer.bos_id, *self.tokenizer.first_ids[:1])
        front = prompt_ids[:1] if prompt_ids[0] in firsts and num_kept > 1 else []
        return front + prompt_ids[len(prompt_ids) - num_kept + len(front) :]


def is_nothing_computed(job: GenerationJob) -> bool:
    """Whether a job wants nothing but its prompt's ids: then a control token may stand among them."""
    return not job.sampling.max_tokens and job.sampling.prompt_logprobs is None


def _check_vocabulary(job: GenerationJob, num_tokens: int) -> None:
    """Refuse ids outside the vocabulary by the name of their field: one would fail the whole batch."""
    named: dict[str, Collection[int]] = {
        "prompt_ids": job.prompt_ids or (),
        "sampling.logit_bias": job.sampling.logit_bias,
        "sampling.stop_token_ids": job.sampling.stop_token_ids,
    }
    wrong = {field: max(ids) for field, ids in named.items() if ids and max(ids) >= num_tokens}
    if wrong:
        message = f"ids must be below {num_tokens}, the size of the vocabulary, got "
        raise InvalidJob([FieldError(field, f"{message}{highest}") for field, highest in wrong.items()])


def _check_length(sequence: Sequence, job: GenerationJob) -> None:
    """Raise GenerationError for a prompt that fills the context, InvalidJob for none, or too many scores."""
    num_prompt, most = len(sequence.prompt_ids), sequence.max_length
    if not num_prompt:
        message = "the model's tokenizer makes no token of it. Fix: another prompt"
        raise InvalidJob([FieldError(_source(job), message)])
    if num_prompt >= most:
        raise GenerationError(
            ErrorCode.PROMPT_TOO_LONG,
            f"{_source(job)}: {num_prompt} tokens, but prompt and completion may have at most {most}. "
            f"Fix: shorten the prompt to {most - 1} tokens or fewer, or set sampling.truncate_prompt_tokens",
        )
    num_top = job.sampling.prompt_logprobs
    num_scores = 0 if num_top is None else num_prompt * (1 + num_top)
    if num_scores > MAX_PROMPT_SCORES:
        message = (
            f"{num_top} for each of {num_prompt} tokens are {num_scores} scores with their own, "
            f"but a prompt may have at most {MAX_PROMPT_SCORES}. Fix: fewer for each, or a shorter prompt"
        )
        raise InvalidJob([FieldError("sampling.prompt_logprobs", message)])


def _check_room(sequence: Sequence, job: GenerationJob, room: int) -> None:
    """Raise GenerationError for a job that never fits into a KV cache with room for so many tokens."""
    if sequence.num_reserved <= room:
        return
    num_prompt = len(sequence.prompt_ids)
    if num_prompt >= room:
        what, and_more = _source(job), ""
        fix = f"shorten the prompt to {room - 1} tokens or fewer, set sampling.truncate_prompt_tokens"
    else:
        what, and_more = f"{_source(job)} and sampling.max_tokens", f" + {job.sampling.max_tokens}"
        fix = f"lower sampling.max_tokens to {room - num_prompt} or less"
    raise GenerationError(
        ErrorCode.PROMPT_TOO_LONG,
        f"{what}: {num_prompt}{and_more} tokens, but the worker's KV cache has room for {room}, prompt and "
        f"completion together. Fix: {fix}, or raise HERD_KV_CACHE_TOKENS",
    )


def _source(job: GenerationJob) -> str:
    """The field that the prompt comes from."""
    return next(name for name in SOURCES if getattr(job, name) is not None)
