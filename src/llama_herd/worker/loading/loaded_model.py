"""A model that is ready to run on this process's device, with its tokenizer and its cache."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import Self

import structlog
import torch

from llama_herd.model.cache import Cache
from llama_herd.model.heads import Head, RankHead, VectorHead
from llama_herd.model.llama2 import Llama
from llama_herd.model.shape.purpose import Embeds, Ranks
from llama_herd.model.text.helper import Helper
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.worker.engine.device_error import is_lack_of_memory, numbers_of
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import Sink
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.thread import EngineThread
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.loading.loading_bar import loading_bar
from llama_herd.worker.loading.machine import device_key, num_threads
from llama_herd.worker.loading.memory_plan import MemoryPlan, torch_dtype
from llama_herd.worker.loading.neighbours import PlanNotes
from llama_herd.worker.loading.runner_choice import choose_runner
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class LoadedModel(AbstractContextManager["LoadedModel"]):
    """A model with all that a worker loads before its first job: weights, cache, and a maker of sequences."""

    llama: Llama
    cache: Cache
    plan: MemoryPlan
    tokenizer: Tokenizer
    maker: SequenceMaker
    head: Head | None  # of a model that embeds
    weights_s: float  # that reading the weights and laying them out took
    steps_note: str = ""  # how the steps of its engine go, once there is one
    needs_warm_up: bool = True

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
            for warning in (*servable.file.complaints, *servable.tokenizer.complaints):
                log.warning("something in the model's files is not used", reason=warning)
            chats = servable.usable_chats()  # their processes must start before CUDA does
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
            judges = [Helper(JUDGE, JUDGE_LIMITS) for _ in range(servable.num_helpers)]
            grammars = Grammars(servable.tokenizer, torch.get_num_threads(), judges)
            head, width = _head(servable, llama, place)
            maker = servable.new_maker(chats, grammars, plan.max_length, plan.kv_cache_tokens, width)
        return cls(llama, cache, plan, servable.tokenizer, maker, head, weights_s)

    def engine(self, settings: WorkerSettings, sink: Sink) -> Engine:
        chosen = choose_runner(self.llama, self.cache, settings, self.plan.form.kernels.draw, self.head)
        self.steps_note = chosen.how
        return Engine(
            chosen.runner,
            self.cache.prefixes,
            max_rows=settings.slots,
            prefill=PrefillBudget.from_setting(settings.prefill_tokens, self.cache.device.type, chosen.costs),
            sink=sink,
        )

    def job_engine(self, settings: WorkerSettings, sink: Sink) -> EngineThread:
        """The engine as jobs have it: on a thread, which is not started yet."""
        return EngineThread(self.engine(settings, sink))

    def settle(self) -> None:
        """Wait until the weights lie where they are read fastest."""
        self.llama.settle()

    def close(self) -> None:
        """End the helper processes that render chats and judge grammars."""
        self.maker.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _head(servable: ServableModel, llama: Llama, place: torch.device) -> tuple[Head | None, int]:
    """What makes numbers of a text, and how many; None: the model generates."""
    match servable.file.purpose:
        case Embeds() as purpose:
            return VectorHead.load(purpose, place), purpose.width(llama.config.hidden_size)
        case Ranks() as purpose:
            return RankHead.load(servable.file, purpose, llama, servable.tokenizer, place), 1
        case _:
            return None, 0


def _load_llama(
    servable: ServableModel,
    place: torch.device,
    plan: MemoryPlan,
    on_progress: Callable[[int, int], None] | None,
) -> Llama:
    """Load the weights, with a bar on a terminal; `on_progress` hears of them, too."""
    with loading_bar(f"loading {servable.settings.model.name}") as show:

        def note(num_done: int, num_bytes: int) -> None:
            show(num_done, num_bytes)
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
