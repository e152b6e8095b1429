"""What a worker does before and besides its work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llama_herd.errors import BadInput
from llama_herd.tasks.app import make_app
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.celery_config import check_queues, lead_links_home
from llama_herd.worker.process import EXIT_THREAD_DIED
from llama_herd.worker.settings import WorkerSettings
from tests.local.forked_python import run_forked

DIE = """
import threading, time
from llama_herd.worker.process import end_process
threading.excepthook = end_process
def fail():
    raise KeyError("a bug")
threading.Thread(target=fail, name="intake").start()
threading.Event().wait(30)
"""


@pytest.mark.long
def test_a_worker_that_loses_a_thread_ends_and_says_which(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIE)
    ended = run_forked(["dies"], os.environ, tmp_path)
    assert ended.returncode == EXIT_THREAD_DIED
    assert "intake" in ended.output
    assert "KeyError" in ended.output


#: Hears a signal while it loads, and a second one as late in its end as can be.
LEAVE = """
import os, signal
from llama_herd.worker.pool import EnginePool
class Late:
    def __del__(self, send=os.kill, own=os.getpid(), number=signal.SIGTERM):
        send(own, number)
late = Late()
class Pool(EnginePool):
    def start_service(self, worker):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("no signal was heard")
Pool(initargs=(None, "one@here")).on_start()
"""


def test_a_second_signal_changes_nothing_of_the_end_of_a_worker_that_loads() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("options", [("-Q", "other,celery"), ("-X", "herd.m")])
def test_a_worker_that_would_not_read_its_models_queue_is_refused_in_one_line(
    options: tuple[str, str], tmp_path: Path
) -> None:
    env = {**os.environ, "HERD_REDIS_URL": "redis://127.0.0.1:1/0", "HERD_SERVED_MODEL_NAME": "m"}
    worker = ["celery", "-A", "llama_herd.tasks.app", "worker", "-n", "w@%h", "--logfile", "%n.log"]
    done = run_forked([*worker, *options], env, tmp_path)
    assert done.returncode == 2
    assert done.output.startswith(line := "herd worker: -Q or -X leaves out herd.m, ")
    assert done.output.count("\n") == 1
    told = json.loads((tmp_path / "w.log").read_text())  # where a detached worker is heard
    assert told["event"].startswith(line)


@pytest.mark.parametrize("options", [{}, {"queues": "celery,herd.m"}, {"exclude_queues": ["celery"]}])
def test_a_worker_may_read_other_queues_beside_its_models(options: dict[str, object]) -> None:
    check_queues(["herd.m"], options)


def test_a_task_that_the_worker_does_not_have_goes_where_its_app_would_send_it() -> None:
    app = make_app(Settings())
    app.conf.task_routes = {"billing.*": "billing"}
    app.loader.import_default_modules()
    routes = "shop.*=shop, shop.sum=sums"
    lead_links_home(app, WorkerSettings.read(model="m.gguf", link_queue="theirs", link_routes=routes))
    names = ("notes.write", "shop.keep", "shop.sum", "billing.charge", TASK_NAME, "celery.chord_unlock")
    routed = {name: app.amqp.router.route({}, name)["queue"].name for name in names}
    own = app.conf.task_default_queue
    assert routed == {
        "notes.write": "theirs",
        "shop.keep": "shop",
        "shop.sum": "sums",
        "billing.charge": "billing",
        TASK_NAME: own,
        "celery.chord_unlock": own,
    }
    assert app.amqp.router.route({"queue": "named"}, "notes.write")["queue"].name == "named"


@pytest.mark.parametrize("routes", ["shop.*", "shop.*=", "=shop", "shop.*=a b", "shop.*=shop;b=c", "a=b=c"])
def test_routes_of_links_that_name_no_queue_are_refused(routes: str) -> None:
    with pytest.raises(BadInput, match=r"link_routes=.*must be task=queue,task=queue"):
        WorkerSettings.read(link_routes=f"fine.*=fine,{routes}")
