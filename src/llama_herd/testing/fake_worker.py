"""Workers without a model, a process for each: forked off one that has loaded all, and again when they die.

python -m llama_herd.testing.fake_worker SOCKET MODEL ...
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from llama_herd.local.redis_server import END_WITH_PARENT
from llama_herd.tasks.app import app
from llama_herd.testing.script_server import AskedScript
from llama_herd.testing.scripted_model import Ask
from llama_herd.testing.scripted_pool import ScriptedPool
from llama_herd.worker import process
from llama_herd.worker.broker import consumer, queue_channel, result_backend, tenant_channel
from llama_herd.worker.celery_worker import run_celery_worker
from llama_herd.worker.settings import WorkerSettings

#: What a child would import by its name.
PRELOADED = (consumer, queue_channel, result_backend, tenant_channel)

_FORK = get_context("fork")


def run_fake_workers(models: Sequence[str], ask: Ask) -> int:
    """Run a worker for each model until a signal ends all, or one ends by itself; return its exit code.

    The settings are those of the environment. One that is killed is started again at once.
    """
    ScriptedPool.ask = ask
    app.conf.worker_pool = f"{ScriptedPool.__module__}:{ScriptedPool.__name__}"
    gc.freeze()
    workers = [_started(model) for model in models]
    is_ending = False

    def end_all(*_: object) -> None:
        nonlocal is_ending
        is_ending = True
        for worker in workers:
            worker.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    exit_code = 0
    while workers:
        connection.wait([one.sentinel for one in workers])
        for ended in [one for one in workers if one.exitcode is not None]:
            workers.remove(ended)
            if ended.exitcode == -signal.SIGKILL and not is_ending:
                workers.append(_started(ended.name))
                if is_ending:  # a signal has come meanwhile
                    workers[-1].terminate()
            elif not is_ending:
                exit_code = ended.exitcode or 0
                end_all()
    return exit_code


def _started(model: str) -> BaseProcess:
    worker = _FORK.Process(target=_serve, args=(model,), name=model)
    worker.start()
    return worker


def _serve(model: str) -> None:
    """Be the worker of one model, to the end of this process."""
    if END_WITH_PARENT is not None:
        END_WITH_PARENT()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ[WorkerSettings.variables("served_model_name")[0]] = model
    process.end_at_once(run_celery_worker(f"fake-{os.getpid()}"))


if __name__ == "__main__":
    _, path, *names = sys.argv
    sys.exit(run_fake_workers(names, AskedScript(Path(path))))
