"""A real redis-server for all tests that want one: one process a session, emptied before each test."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from redis import Redis, utils as redis_utils
from structlog.dev import ConsoleRenderer, plain_traceback

from llama_herd.errors import BadInput
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.kernels.build import build
from llama_herd.model.kernels.instruction_set import is_known_machine
from llama_herd.model.kernels.trusted_folder import trusted_folder
from tests.drawing import leave_out, mark_cost

if TYPE_CHECKING:
    from llama_herd.worker.settings import WorkerSettings

# How long an example takes says something of the machine, not of the code.
settings.register_profile("herd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("herd")

# What the laws say of numbers, they say of float32; and tests that want a GPU ask for it.
os.environ.setdefault("HERD_DTYPE", "float32")
os.environ.setdefault("HERD_DEVICE", "cpu")
os.environ.setdefault("HERD_KERNELS_DIR", "/nowhere")  # not what somebody has built for his own use

# Processes share few cores here: a thread of torch that waits for another one leaves them to the others, and
# tiny models would wait more than compute. Workers, and tests of threads, set the number themselves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# structlog's own way to write an exception, with colours and all locals, takes a third of a second.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        ConsoleRenderer(exception_formatter=plain_traceback),
    ]
)

# redis-py reads its own version from the disk for each connection: a third of what one costs.
redis_utils.get_lib_version = cache(redis_utils.get_lib_version)

# While all is loaded nothing is garbage; and what is loaded then, half a million objects, never will be.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "kernels_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(600))  # the first of them compiles, others wait for it
    leave_out(items)
    mark_cost(items)
    if hasattr(config, "workerinput"):
        _put_long_files_first(items)


def _put_long_files_first(items: list[pytest.Item]) -> None:
    """So that no process is left with one of them while the others have nothing to do any more."""
    long = {item.path for item in items if any(map(item.get_closest_marker, ("long", "worker")))}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.file_scheduler import FileScheduler

    return FileScheduler(config, log)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server
        # Celery's results unsubscribe when they are freed, and would wait for a Redis that is gone.
        gc.collect()


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    """A connection to an empty Redis that knows no scripts."""
    with Redis.from_url(redis_server.url) as connection:
        connection.flushall()
        connection.script_flush()
        yield connection


@pytest.fixture
def redis_url(redis: Redis, redis_server: EmbeddedRedis) -> str:
    """The address of an empty Redis."""
    return redis_server.url


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    """A Redis for the tests of a file, not emptied between them."""
    with EmbeddedRedis() as server:
        yield server
        gc.collect()  # as above


@pytest.fixture(scope="session")
def tiny_settings(tmp_path_factory: pytest.TempPathFactory) -> "WorkerSettings":
    """Of a worker that serves a tiny random Llama."""
    from llama_herd.worker.settings import WorkerSettings
    from tests.tiny import write_tiny_gguf

    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    return WorkerSettings(model=path, slots=4, kv_cache_tokens=1024, prefill_tokens=48, threads=1)


@pytest.fixture
def tiny_path(tiny_settings: "WorkerSettings") -> Path:
    return tiny_settings.model


@pytest.fixture(scope="session")
def kernels_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of native kernels, built from today's sources."""
    if not is_known_machine():
        pytest.skip("there are no kernels for this kind of machine")
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("kernels")
    try:
        trusted_folder(folder)
    except BadInput:  # this is a checkout of somebody else: a folder for this run, of all its processes
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if hasattr(pytestconfig, "workerinput") else base) / "kernels"
    try:
        build(folder)
    except BadInput as error:
        if "need the compiler" not in str(error):
            raise
        pytest.skip(str(error))
    return folder


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are no new Pythons, whoever starts them, but forked off one that has loaded torch."""
    from llama_herd.local.worker_process import WorkerProcess
    from tests.local.processes import ForkedWorker

    monkeypatch.setattr(WorkerProcess, "start", ForkedWorker.start)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads lose the interpreter every 10 us, so that what they do to each other is seen."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before_s)
