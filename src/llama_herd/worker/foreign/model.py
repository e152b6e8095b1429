"""ForeignModel: in a worker it stands where a model stands, and a server computes its tokens."""

import asyncio
from dataclasses import dataclass
from typing import Self

import structlog

from llama_herd.errors import SettingsError
from llama_herd.model.files.model_texts import open_texts
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.text.helper import Helper
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.worker.engine.interface import Sink
from llama_herd.worker.engine.sequence import PLAIN, Handling, Sequence
from llama_herd.worker.foreign.backend import Backend, KeyRefused, ServerBusy, ServerFault
from llama_herd.worker.foreign.engine import ForeignEngine
from llama_herd.worker.foreign.http import HttpServer, ServerAway
from llama_herd.worker.foreign.llama_server import LlamaServer
from llama_herd.worker.foreign.served_facts import ServedFacts
from llama_herd.worker.foreign.vllm import Vllm
from llama_herd.worker.foreign.watch import AWAY_INTERVAL_S, ServerWatch
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.grammars.served_forms import ServedForms
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.loading.servable_texts import ServableTexts
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

BACKENDS: dict[str, type[Backend]] = {"vllm": Vllm, "llama-server": LlamaServer}


def backend_of(settings: WorkerSettings) -> Backend:
    """The server of these settings, as what it is asked."""
    return BACKENDS[settings.engine](HttpServer.at(settings.engine_url, settings.engine_api_key))


@dataclass(frozen=True)
class ForeignSize:
    """The size of a model whose weights and cache are a server's."""

    max_length: int
    kv_cache_tokens: int
    dtype: str = "its server's"
    keeps_blocks: bool = False
    num_bytes: int = 0


@dataclass(frozen=True)
class ForeignMaker(SequenceMaker):
    """Makes sequences as of any model, of jobs that the server can do."""

    backend: Backend

    def sequences(
        self, job_id: str, job: Job, now_ms: int, due_ms: int | None = None, handling: Handling = PLAIN
    ) -> list[Sequence]:
        """Prepare a job for the engine. Raises InvalidJob by each field that the server cannot do."""
        if isinstance(job, GenerationJob):
            self.backend.check(job)
        return super().sequences(job_id, job, now_ms, due_ms, handling)


@dataclass(eq=False)
class ForeignModel:
    """What a worker serves in front of a server: texts are read here, and tokens come from there."""

    plan: ForeignSize
    maker: ForeignMaker
    backend: Backend
    served: ServedFacts
    needs_warm_up: bool = False

    @classmethod
    def load(cls, settings: WorkerSettings) -> Self:
        """Read the model's texts, and wait until the server is there.

        Raises ModelFileError, and SettingsError if the server serves another model.
        """
        file = open_texts(settings.model)
        texts = ServableTexts(file, file.tokenizer, settings)
        backend = backend_of(settings)
        served = asyncio.run(_served(backend, texts, settings))
        max_length = min(served.facts.max_length, settings.context_tokens or served.facts.max_length)
        num_pages = pages_for(settings.slots * max_length)
        size = ForeignSize(max_length, num_pages * PAGE_TOKENS)
        return cls(size, _maker(texts, backend, size), backend, served)

    def job_engine(self, settings: WorkerSettings, sink: Sink) -> ForeignEngine:
        """The engine, whose thread is not started yet."""
        return ForeignEngine(self.backend, ServerWatch(self.backend, self.served), settings.slots, sink)

    def settle(self) -> None:
        """Nothing becomes faster."""

    def close(self) -> None:
        """End the helper processes that render chats and judge grammars."""
        self.maker.close()


async def _served(backend: Backend, texts: ServableTexts, settings: WorkerSettings) -> ServedFacts:
    """What the server serves, once it is there."""
    told = set[type[Exception]]()  # kinds of reasons that the log has
    while True:
        try:
            return await ServedFacts.ask(backend, texts.tokenizer, str(settings.model), settings.served_model)
        except KeyRefused as error:
            raise SettingsError(f"{error}. Fix: set the key that the server was started with") from None
        except (ServerAway, ServerBusy, ServerFault) as error:
            if type(error) not in told:
                log.warning("waiting for the engine's server", url=settings.engine_url, reason=str(error))
            told.add(type(error))
            await asyncio.sleep(AWAY_INTERVAL_S)


def _maker(texts: ServableTexts, backend: Backend, size: ForeignSize) -> ForeignMaker:
    chats = texts.usable_chats()
    judges = [Helper(JUDGE, JUDGE_LIMITS) for _ in range(texts.num_helpers)]
    grammars = Grammars(texts.tokenizer, 1, judges)
    forms = ServedForms(grammars, backend.forms, backend.refusal, backend.form_as_kept)
    made = texts.new_maker(chats, forms, size.max_length, size.kv_cache_tokens)
    return ForeignMaker(**vars(made), backend=backend)
