"""A model that is ready to run on this process's device, with its tokenizer and its cache."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from time import monotonic
from typing import Self

import structlog
import torch

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob, ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.text.chat import ChatTemplates
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.protocol.job import MAX_PROMPT_SCORES, SOURCES, GenerationJob, seed_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.echoed_prompt import EchoedPrompt
from llama_herd.worker.engine.engine import Engine, Sink
from llama_herd.worker.engine.memory_error import is_lack_of_memory, numbers_of
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.grammars.grammars import FormJudge, Grammars
from llama_herd.worker.loading.chat_of_job import chat_of
from llama_herd.worker.loading.chat_outputs import ChatOutputs
from llama_herd.worker.loading.free_memory import device_key
from llama_herd.worker.loading.loading_bar import LoadingBar
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.loading.plan_notes import PlanNotes
from llama_herd.worker.loading.runner_choice import choose_runner
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.loading.threads import num_threads
from llama_herd.worker.loading.torch_dtype import torch_dtype
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)


class LoadedModel(AbstractContextManager["LoadedModel"]):
    """A model with all that a worker loads before its first job: tokenizer, chat templates, cache, plan."""

    def __init__(
        self,
        llama: Llama,
        tokenizer: Tokenizer,
        chat: ChatTemplates | None,
        chat_complaint: str,
        outputs: ChatOutputs,
        cache: Cache,
        plan: MemoryPlan,
        weights_s: float,
        grammars: Grammars,
    ) -> None:
        self.llama = llama
        self.tokenizer = tokenizer
        self.chat = chat
        self.chat_complaint = chat_complaint  # why chats are refused, where there is no `chat`
        self.outputs = outputs
        self.cache = cache
        self.plan = plan
        self.grammars = grammars
        self.weights_s = weights_s  # that reading the weights and laying them out took
        self.max_length = plan.max_length
        self.steps_note = ""  # how the steps of its engine go, once there is one

    @classmethod
    def load(
        cls, settings: WorkerSettings, device: str, on_progress: Callable[[int, int], None] | None = None
    ) -> Self:
        """Load the model file onto `device`, and make the cache as large as the settings say.

        `on_progress(done, total)` is told bytes of the file as weights are laid out. A terminal shows a bar.
        Raises ModelFileError or SettingsError, each with the numbers and the fix.
        """
        torch.set_num_threads(num_threads(settings))
        place = torch.device(device)
        with ServableModel.open(settings, device) as servable:
            for warning in servable.tokenizer.complaints:
                log.warning("something in the model's files is not used", reason=warning)
            chat, complaint = _chat_templates(servable)  # its processes must start before CUDA does
            outputs = servable.chat_outputs()
            plan = _make_plan(servable, device)
            try:
                started_s = monotonic()
                llama = _load_llama(servable, place, plan, on_progress)
                weights_s = monotonic() - started_s
                cache = Cache(
                    llama.config,
                    plan.num_pages,
                    place,
                    torch_dtype(plan.dtype),
                    max_length=plan.max_length,
                    keeps_prefixes=settings.prefix_cache,
                )
            except RuntimeError as error:
                if not is_lack_of_memory(error):
                    raise
                raise plan.refusal(settings.model.name, numbers_of(error) or "less") from error
            judges = [FormJudge() for _ in range(servable.num_helpers)]
            grammars = Grammars(servable.tokenizer, torch.get_num_threads(), judges)
        return cls(llama, servable.tokenizer, chat, complaint, outputs, cache, plan, weights_s, grammars)

    def engine(self, settings: WorkerSettings, sink: Sink) -> Engine:
        runner, self.steps_note = choose_runner(self.llama, self.cache, settings, self.plan.form.kernels.draw)
        return Engine(
            runner,
            self.cache.prefixes,
            max_rows=settings.slots,
            prefill=PrefillBudget.from_setting(settings.prefill_tokens, self.cache.device.type),
            sink=sink,
        )

    def sequences(
        self, job_id: str, job: GenerationJob, now_ms: int, due_ms: int | None = None
    ) -> list[Sequence]:
        """Prepare a job for the engine: one sequence for each of its outputs.

        `now_ms` is the current time on the clock of the job's deadline. `due_ms` is the date that a chat
        template writes, the same at each attempt; None: today. Raises InvalidJob or GenerationError when this
        model cannot run the job.
        """
        self._check_vocabulary(job)
        prompt_ids = self._truncated(self._prompt_ids(job, due_ms), job.sampling)
        ends_by_ms = job.ends_by(now_ms if due_ms is None else due_ms)
        deadline_s = None if ends_by_ms is None else monotonic() + (ends_by_ms - now_ms) / 1000
        form, num = self.outputs.form(job, prompt_ids), job.sampling.n
        constraints = [None] * num if form is None else self.grammars.constraints(form, num)
        # To a form a leading space belongs.
        is_answer = job.messages is not None and job.output_form is None
        reading = self.outputs.reading(job, prompt_ids)
        pieces = self.tokenizer.pieces if reading is None else self.outputs.pieces
        sequences = [
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
                choice=choice,
            )
            for choice, constraint in enumerate(constraints)
        ]
        self._check_room(sequences[0], job)
        return sequences

    def echoed_prompt(self, job: GenerationJob, prompt_ids: list[int]) -> EchoedPrompt | None:
        """The prompt for the job's `started` event; None: not asked for. prompt_ids: of its sequences."""
        if not job.echo:
            return None
        is_whole = job.sampling.truncate_prompt_tokens is None
        text = job.prompt if job.prompt is not None and is_whole else self.tokenizer.text_of(prompt_ids)
        return EchoedPrompt(tuple(prompt_ids), text, self.max_length)

    def close(self) -> None:
        """End the helper processes that render chats and judge grammars."""
        self.grammars.close()
        if self.chat is not None:
            self.chat.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompt_ids(self, job: GenerationJob, due_ms: int | None) -> list[int]:
        if job.prompt_ids is not None:
            return list(job.prompt_ids)
        if job.messages is None:
            add_bos = False if job.add_special_tokens is False else None
            return self.tokenizer.encode(job.prompt or "", add_bos=add_bos)
        if self.chat is None:
            raise GenerationError(
                ErrorCode.NO_CHAT_TEMPLATE, f"messages: {self.chat_complaint} Fix: send a prompt instead"
            )
        return self.chat.encode(chat_of(job, due_ms))

    def _truncated(self, prompt_ids: list[int], params: SamplingParams) -> list[int]:
        """The prompt, cut from the left if the job asks for it; a BOS at its front stays."""
        num_kept = params.truncate_prompt_tokens
        if num_kept == -1:
            num_kept = max(1, self.max_length - params.max_tokens)
        if num_kept is None or len(prompt_ids) <= num_kept:
            return prompt_ids
        firsts = (self.tokenizer.bos_id, *self.tokenizer.first_ids[:1])
        front = prompt_ids[:1] if prompt_ids[0] in firsts and num_kept > 1 else []
        return front + prompt_ids[len(prompt_ids) - num_kept + len(front) :]

    def _check_vocabulary(self, job: GenerationJob) -> None:
        """Refuse ids outside the vocabulary by the name of their field: one would fail the whole batch."""
        sampling, num_tokens = job.sampling, self.tokenizer.vocab_size
        named: dict[str, Collection[int]] = {
            "prompt_ids": job.prompt_ids or (),
            "sampling.logit_bias": sampling.logit_bias,
            "sampling.stop_token_ids": sampling.stop_token_ids,
        }
        wrong = {field: max(ids) for field, ids in named.items() if ids and max(ids) >= num_tokens}
        if wrong:
            message = f"ids must be below {num_tokens}, the size of the vocabulary, got "
            raise InvalidJob([FieldError(field, f"{message}{highest}") for field, highest in wrong.items()])

    def _check_room(self, sequence: Sequence, job: GenerationJob) -> None:
        """Raise GenerationError if the job can never fit into the context or the KV cache, and InvalidJob."""
        if sequence.finish_reason:
            return  # nothing of it is computed
        num_prompt, num_pages = len(sequence.prompt_ids), self.cache.pages.num_pages
        source = next(name for name in SOURCES if getattr(job, name) is not None)
        if num_prompt >= self.max_length:
            raise GenerationError(
                ErrorCode.PROMPT_TOO_LONG,
                f"{source}: {num_prompt} tokens, but prompt and completion may have at most {self.max_length}"
                f". Fix: shorten the prompt to {self.max_length - 1} tokens or fewer, or set "
                "sampling.truncate_prompt_tokens",
            )
        num_top = job.sampling.prompt_logprobs
        num_scores = 0 if num_top is None else num_prompt * (1 + num_top)
        if num_scores > MAX_PROMPT_SCORES:
            message = (
                f"{num_top} for each of {num_prompt} tokens are {num_scores} scores with their own, "
                f"but a prompt may have at most {MAX_PROMPT_SCORES}. Fix: fewer for each, or a shorter prompt"
            )
            raise InvalidJob([FieldError("sampling.prompt_logprobs", message)])
        if pages_for(sequence.num_reserved) > num_pages:
            raise GenerationError(
                ErrorCode.PROMPT_TOO_LONG,
                f"{source} and sampling.max_tokens: {sequence.num_reserved} tokens, but the KV cache has "
                f"room for {num_pages * PAGE_TOKENS}. Fix: lower sampling.max_tokens, or raise "
                "HERD_KV_CACHE_TOKENS",
            )


def _load_llama(
    servable: ServableModel,
    place: torch.device,
    plan: MemoryPlan,
    on_progress: Callable[[int, int], None] | None,
) -> Llama:
    """Load the weights, with a bar on a terminal; `on_progress` hears of them, too."""
    with LoadingBar(f"loading {servable.settings.model.name}") as bar:

        def note(num_done: int, num_bytes: int) -> None:
            bar.note(num_done, num_bytes)
            if on_progress is not None:
                on_progress(num_done, num_bytes)

        return Llama.load(servable.file, place, torch_dtype(plan.dtype), note, servable.tiling, plan.form)


def _make_plan(servable: ServableModel, device: str) -> MemoryPlan:
    """The memory plan of this process, noted so that no other worker plans to take the same memory."""
    started_s = monotonic()
    if device != "cpu":
        log.info("compiling and checking kernels", gpu=device_key(device))
    note = servable.kernels.note  # may take long to compile: no other worker waits for that
    if device != "cpu":
        log.info("kernels ready", kernels=note, seconds=round(monotonic() - started_s, 3))
    notes = PlanNotes(device_key(device))
    with notes.turn():
        plan = servable.fitting_plan()
        notes.write(plan.num_bytes)
    return plan


def _chat_templates(servable: ServableModel) -> tuple[ChatTemplates | None, str]:
    """The model's chat templates; or none, and why chats are refused while all other jobs are served."""
    try:
        return servable.chat_templates(), "this model has no chat template."
    except ModelFileError as error:
        log.warning(
            "chat template cannot be used, chats are refused",
            model=servable.settings.model.name,
            reason=str(error),
        )
        return None, str(error)
