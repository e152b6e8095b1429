"""Stand-in servers of both kinds, and workers in front of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from tests.local.processes import WorkerProcess
from tests.stand_in import StandIn

#: Makes a server with these options of its command line.
NewServer = Callable[..., StandIn]
#: Makes a worker in front of a server, with these settings.
NewWorker = Callable[..., WorkerProcess]


#: The names of all fields that a backend has to name.
FIELDS = sorted(
    [name for name in GenerationJob.model_fields if name != "sampling"]
    + [f"sampling.{name}" for name in SamplingParams.model_fields]
)


@pytest.fixture(params=["vllm", "llama-server"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            StandIn(BUNDLED_MODEL, tmp_path / "bodies.log", **options)
        )


@pytest.fixture
def new_worker(redis_url: str, tmp_path: Path) -> Iterator[NewWorker]:
    with ExitStack() as stack:

        def worker(kind: str, server: StandIn, name: str = "f", **settings: Any) -> WorkerProcess:
            own: dict[str, Any] = {"engine": kind, "engine_url": server.url, "flush_ms": 0, **settings}
            log = tmp_path / f"{name}.log"
            return stack.enter_context(WorkerProcess(redis_url, BUNDLED_MODEL, name, log, **own))

        yield worker
