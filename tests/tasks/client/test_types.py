"""What type checkers say of a user's file, with no plugin and none of our settings."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.job_fields import JobFields, MessageFields, SamplingFields
from llama_herd.tasks.protocol.sampling import SamplingParams

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
GOOD = Path(__file__).with_name("a_users_file.py")

#: Each line is wrong in its own way.
BAD = """\
from llama_herd.tasks import AsyncClient, Client, GenerationJob, SamplingParams

client = Client()
client.submit(promt="x")
client.submit(prompt=3)
client.submit(prompt="x", sampling=7)
client.submit(prompt="x", sampling={"max_token": 3})
client.submit(prompt="x", sampling={"temperature": "hot"})
client.submit(prompt="x", timeout=3)
submitting = AsyncClient().submit(prompt="x", sampling={"temprature": 0.5})
client.result("a", timeout_ms=3)
GenerationJob(promt="x")
SamplingParams(max_token=3)
"""
FIRST_BAD_LINE = 4

CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"],
    "pyright": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}


def check(checker: str, folder: Path, cache: Path) -> str:
    """What a checker says of the files in a folder; the cache is of all that they import."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    environment = os.environ | {"MYPYPATH": str(ROOT / "src"), "MYPY_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [*CHECKERS[checker], *(file.name for file in folder.iterdir())],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.program
@pytest.mark.timeout(240)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_file_is_right_and_each_mistake_in_it_is_found(
    checker: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    (tmp_path / "good.py").write_text(GOOD.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "bad.py").write_text(BAD, encoding="utf-8")
    said = check(checker, tmp_path, pytestconfig.cache.mkdir("users-file"))
    assert "good.py:" not in said
    for number in range(FIRST_BAD_LINE, len(BAD.splitlines()) + 1):
        assert f"bad.py:{number}:" in said


@pytest.mark.parametrize(
    ("fields", "model"),
    [(JobFields, GenerationJob), (SamplingFields, SamplingParams), (MessageFields, ChatMessage)],
)
def test_the_fields_for_checkers_are_those_of_the_models(fields: type, model: type) -> None:
    assert list(fields.__annotations__) == list(model.model_fields)  # type: ignore[attr-defined]
