"""What tests rely on of a fork: it is as a new Python, and never outlives who has asked for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.local.forked_python import FOLDER, ForkedPython, run_forked, start_piped

pytestmark = pytest.mark.worker

SHOW = """
import atexit, os, sys, tempfile, __main__
atexit.register(print, "bye")
print(*sys.argv[1:], os.environ, os.getcwd(), tempfile.gettempdir(), __main__.SHOWN)
print("error", file=sys.stderr)
"""

ENDS = {"": 0, "exit()": 0, "exit(3)": 3, "exit('why')": 1, "1 / 0": 1, "os.kill(os.getpid(), 9)": -9}

#: Starts a fork, says its id, and waits.
ASKS = """
import os, sys
from pathlib import Path
from tests.local.forked_python import start_piped
kept = start_piped(["sleeps"], os.environ, Path(sys.argv[1]))  # or its process would end at once
print(kept.pid, flush=True)
sys.stdin.read()
"""


def module(folder: Path, name: str, code: str) -> None:
    (folder / f"{name}.py").write_text(f"import os, sys\nSHOWN = 'here'\n{code}\n")


def test_its_environment_its_folder_and_its_output_are_its_own(tmp_path: Path) -> None:
    module(tmp_path, "shows", SHOW)
    (tmp_path / "temporary").mkdir()
    env = {"TMPDIR": f"{tmp_path}/temporary"}
    with start_piped(["shows", "a b"], env, tmp_path) as process:
        output, errors = process.communicate()
    assert output == f"a b environ({env}) {tmp_path} {tmp_path}/temporary here\nbye\n"
    assert (process.returncode, errors) == (0, "error\n")


@pytest.mark.parametrize(("code", "expected"), ENDS.items())
def test_its_exit_code_is_that_of_a_new_python(tmp_path: Path, code: str, expected: int) -> None:
    module(tmp_path, "ends", code)
    done = run_forked(["ends"], os.environ, tmp_path)
    assert done.returncode == expected
    assert ("why" in done.output) == ("why" in code)
    assert ("ZeroDivisionError" in done.output) == ("/" in code)


def test_it_ends_with_the_process_that_has_asked_for_it(tmp_path: Path) -> None:
    module(tmp_path, "sleeps", "import time; time.sleep(60)")
    ensured = start_piped(["sleeps"], os.environ, tmp_path)
    command = [sys.executable, "-c", ASKS, str(tmp_path)]
    env = {"PYTEST_XDIST_TESTRUNUID": str(os.getpid()), **os.environ}  # so that it asks the same server
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=FOLDER, env=env, text=True, **pipes) as asking:  # type: ignore[call-overload]
        fork = psutil.Process(int(asking.stdout.readline()))
        assert fork.parent() == psutil.Process(ensured.pid).parent()
        asking.kill()
    wait_until(lambda: not fork.is_running(), "the fork is gone")
    assert ensured.poll() is None
    ensured.kill()
    assert ensured.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_the_server_ends_with_the_last_one_who_has_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "sleeps", "import time; time.sleep(60)")
    env = {**os.environ, "PYTEST_XDIST_TESTRUNUID": f"alone-{os.getpid()}"}
    command = [sys.executable, "-c", ASKS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=FOLDER, env=env, text=True, **pipes) as asking:  # type: ignore[call-overload]
        fork = psutil.Process(int(asking.stdout.readline()))
        server = fork.parent()
        asking.kill()
    assert server is not None
    wait_until(lambda: not fork.is_running() and not server.is_running(), "both are gone")


@pytest.mark.slow
def test_a_fork_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", f"killed-{os.getpid()}")
    module(tmp_path, "sleeps", "import time; time.sleep(60)")
    from tests.local import forked_python

    monkeypatch.setattr(forked_python, "ensure_forkserver", forked_python.ensure_forkserver.__wrapped__)
    process: ForkedPython = start_piped(["sleeps"], os.environ, tmp_path)
    server = psutil.Process(process.pid).parent()
    assert server is not None
    server.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(process.pid), "the fork is gone")
