"""What a worker does before and besides its work."""

import subprocess
import sys

from llama_herd.worker.boot import EXIT_THREAD_DIED

DIE = """
import threading, time
from llama_herd.worker.boot import end_process
threading.excepthook = end_process
def fail():
    raise KeyError("a bug")
threading.Thread(target=fail, name="intake").start()
threading.Event().wait(30)
"""


def test_a_worker_that_loses_a_thread_ends_and_says_which() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DIE], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == EXIT_THREAD_DIED
    assert "intake" in ended.stdout + ended.stderr
    assert "KeyError" in ended.stdout + ended.stderr
