"""The product runs with older versions of its packages, as far as pyproject.toml allows them.

A Celery shop has its own: pip leaves what is installed as long as it is allowed.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = ("celery", "cli", "worker", "hub", "batch", "gateway")
#: torch is gigabytes, and the tests run with an older one elsewhere.
NOT_TRIED = {"llama-herd", "torch"}
#: Older versions of Celery, each with the last kombu of its time.
CELERIES = (("celery[redis]==5.5.3", "kombu==5.5.4"), ("celery[redis]==5.6.3", "kombu==5.6.2"))
#: What stands on their insides.
OF_CELERY = (
    "tests/worker/broker",
    "tests/worker/jobs",
    "tests/worker/test_worker.py",
    "tests/worker/test_roles.py",
    "tests/worker/test_tenants.py",
    "tests/worker/test_urgent_jobs.py",
    "tests/tasks/client",
    "tests/tasks/test_app.py",
    "tests/tasks/test_generate.py",
)
#: A queue with passwords, a batch, links, a page, requests to a gateway, its description and the tokenizer.
TRIED = (
    "tests/worker/test_roles.py",
    "tests/worker/test_process.py",
    "tests/worker/test_clients.py",
    "tests/cli/test_commands.py",
    "tests/cli/batch/test_real_worker.py",
    "tests/cli/batch/test_table_command.py",
    "tests/cli/batch/test_embed_command.py",
    "tests/tasks/gateway/test_openai_routes.py",
    "tests/tasks/gateway/test_openapi.py",
    "tests/tasks/gateway/test_job_routes.py",
    "tests/tasks/test_schema.py",
    "tests/tasks/test_settings.py",
    "tests/tasks/client/test_client.py",
    "tests/model/text",
)

pytestmark = [pytest.mark.slow, pytest.mark.program, pytest.mark.timeout(1800)]


def lowest_versions() -> dict[str, str]:
    """The oldest version of each package that is allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = sum((extras[extra] for extra in EXTRAS), project["dependencies"])
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        bounds = [one.version for one in requirement.specifier if one.operator == ">="]
        if requirement.name not in NOT_TRIED:
            assert bounds, f"{requirement.name} has no lowest version"
            found[requirement.name] = bounds[0]
    return found


def run(*command: str | Path, **env: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def install(folder: Path, *wanted: str) -> str:
    """Install these beside our own environment. Returns the path for Python, which finds them first."""
    run(sys.executable, "-m", "pip", "install", "-q", "--target", folder, *wanted)
    return f"{folder}:{ROOT / 'src'}:{ROOT}"


def test_the_oldest_versions_that_are_allowed_will_do(tmp_path: Path) -> None:
    path = install(tmp_path, *(f"{name}=={version}" for name, version in lowest_versions().items()))
    run(sys.executable, "-m", "llama_herd", "demo", PYTHONPATH=path)
    run(sys.executable, "-m", "pytest", "-q", *TRIED, PYTHONPATH=path)


@pytest.mark.parametrize("wanted", CELERIES)
def test_older_versions_of_celery_will_do(tmp_path: Path, wanted: tuple[str, ...]) -> None:
    path = install(tmp_path, *wanted)
    run(sys.executable, "-m", "pytest", "-q", *OF_CELERY, PYTHONPATH=path)
