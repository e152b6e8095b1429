"""What a worker does before and besides its work."""

import os
from pathlib import Path

import pytest

from llama_herd.tasks.app import make_app
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.tasks.settings import Settings
from llama_herd.worker.broker.celery_config import lead_links_home
from llama_herd.worker.process import EXIT_THREAD_DIED
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


def test_a_task_that_the_worker_does_not_have_goes_where_its_app_would_send_it() -> None:
    app = make_app(Settings())
    app.conf.task_routes = {"billing.*": "billing"}
    app.loader.import_default_modules()
    lead_links_home(app, "theirs")
    routed = {
        name: app.amqp.router.route({}, name)["queue"].name
        for name in ("notes.write", "billing.charge", TASK_NAME, "celery.chord_unlock")
    }
    own = app.conf.task_default_queue
    assert routed == {
        "notes.write": "theirs",
        "billing.charge": "billing",
        TASK_NAME: own,
        "celery.chord_unlock": own,
    }
    assert app.amqp.router.route({"queue": "named"}, "notes.write")["queue"].name == "named"
