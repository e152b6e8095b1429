"""An engine whose steps overlap, on a card or on a device that stands in for one."""

from dataclasses import replace

from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.graph_device import CudaDevice
from llama_herd.worker.engine.interface import Sink
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.slot_runner import SlotRunner
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import Collector, finish
from tests.worker.stand_in_device import StandInDevice


class Overlapping:
    """The engine, its runner, its device and its cache, with pages that lie anywhere."""

    def __init__(
        self,
        model: LoadedModel,
        settings: WorkerSettings,
        sink: Sink,
        llama: Llama | None = None,
        card: CudaDevice | None = None,
    ) -> None:
        """`llama`: in place of the model's own. `card`: where the model is, if on one."""
        llama, place = llama or model.llama, model.cache.device
        self.cache = Cache(
            model.llama.config,
            model.cache.pages.num_pages,
            place,
            model.cache.storage.dtype,
            max_length=model.plan.max_length,
            consecutive=False,
        )
        self.device = StandInDevice()
        self.runner = SlotRunner(llama, self.cache, card or self.device, settings.slots)
        prefill = PrefillBudget.from_setting(settings.prefill_tokens, place.type)
        self.engine = Engine(
            self.runner, self.cache.prefixes, max_rows=settings.slots, prefill=prefill, sink=sink
        )


def with_layers(llama: Llama, num_layers: int) -> Llama:
    """Its first layers alone, where it does not matter what is drawn; also none."""
    return replace(llama, blocks=llama.blocks[:num_layers])


def run_overlapping(model: LoadedModel, settings: WorkerSettings, sequences: list[Sequence]) -> Collector:
    sink = Collector()
    engine = Overlapping(model, settings, sink).engine
    for one in sequences:
        engine.submit(one)
    finish(engine)
    return sink
