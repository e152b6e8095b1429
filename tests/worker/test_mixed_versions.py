"""Workers and clients of an older version on one Redis with ours: each reads what the other has written."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.client.client import Client
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import wait_until
from tests.local.tended_worker import TendedWorker

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.slow, pytest.mark.timeout(600)]

#: The commit from which the older version is built.
OLD_COMMIT = "b568389a02a7397d2510e5fcf1cb4a4ccffdfbf3"
ROOT = Path(__file__).parents[2]
Version = Literal["old", "new"]

#: Jobs of every kind whose records, messages and events differ.
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "Once upon a time", "max_tokens": 24},
    "several outputs": {"prompt": "The fox", "sampling": {"n": 2, "seed": 7, "max_tokens": 16}},
    "scores": {"prompt": "A boy", "sampling": {"logprobs": True, "top_logprobs": 3, "max_tokens": 12}},
    "prompt scores": {"prompt": "A boy", "sampling": {"prompt_logprobs": 1, "max_tokens": 4}},
    "stop": {"prompt": "Once upon a time", "sampling": {"stop": ["the"], "max_tokens": 60}},
    "urgent": {"prompt": "Hello", "priority": 9, "flush_ms": 0, "max_tokens": 8},
    "low": {"prompt": "Hello", "priority": -9, "metadata": {"row": "1"}, "max_tokens": 8},
    "form": {
        "prompt": "A number: ",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "integer"}},
        },
        "max_tokens": 12,
    },
    "echo": {"prompt": "Once upon", "echo": True, "max_tokens": 4},
    "retried and kept": {"prompt": "Hello", "retries": 1, "keep_s": 600, "max_tokens": 4},
}

#: A client of the other version: it runs the method that it is told, and prints what it gives as JSON.
CLIENT = """
import json, sys
from llama_herd import Client
from llama_herd.tasks.settings import Settings
method, given = sys.argv[1], json.loads(sys.argv[2])
with Client(sys.argv[3]) as client:
    if method == "submit":
        print(json.dumps(client.submit(**given)))
    elif method == "stream":
        print(json.dumps([event.model_dump(mode="json") for event in client.stream(given, timeout_s=120)]))
    elif method == "result":
        print(json.dumps(client.result(given, timeout_s=120).model_dump(mode="json")))
    elif method == "batch":
        print(json.dumps(sorted((item.row.index, item.result.text) for item in client.batch(given))))
    elif method == "cancel":
        job_id = client.submit(**given)
        next(event for event in client.stream(job_id, timeout_s=120) if event.type == "token")
        client.cancel(job_id)
        print(json.dumps(client.result(job_id, timeout_s=120).model_dump(mode="json")))
"""


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older version, installed from its wheel into a folder."""
    known = ["git", "cat-file", "-e", f"{OLD_COMMIT}^{{commit}}"]
    if subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(f"this checkout lacks commit {OLD_COMMIT[:8]}, whose version would be the older one")
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(
        ["git", "archive", OLD_COMMIT, "src", "pyproject.toml", "README.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    (folder / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder / "source")], input=archive, check=True)
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *flags, "-w", str(folder), str(folder / "source")]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "installed")
    return folder / "installed"


def environment(version: Version, old_folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(old_folder if version == "old" else ROOT / "src")}


def settings_of(redis_url: str) -> WorkerSettings:
    return WorkerSettings.read(
        redis_url=redis_url, model=BUNDLED_MODEL, deterministic=True, threads=1, slots=4, kv_cache_tokens=4096
    )


class Herd:
    """Workers and clients of both versions on one Redis."""

    def __init__(self, redis_url: str, old_folder: Path, folder: Path, stack: ExitStack) -> None:
        self.url = redis_url
        self._old_folder, self._folder, self._stack = old_folder, folder, stack
        self._num_workers = 0

    def start(self, version: Version) -> TendedWorker:
        """A worker of this version, ready."""
        self._num_workers += 1
        name = f"{version}{self._num_workers}"
        worker = TendedWorker(
            settings_of(self.url),
            f"{name}@test",
            self._folder / f"{name}.log",
            env=environment(version, self._old_folder),
        )
        return self._stack.enter_context(worker)

    def ask(self, version: Version, method: str, given: Any) -> Any:
        """What a client of this version answers."""
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, method, json.dumps(given), self.url],
            env=environment(version, self._old_folder)
            | {"HERD_MODEL_NAME": "tales", "PATH": "/usr/bin:/bin"},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def mixed(redis_url: str, old_folder: Path, tmp_path: Path) -> Iterator[Herd]:
    with ExitStack() as stack:
        yield Herd(redis_url, old_folder, tmp_path, stack)


def test_the_older_version_is_another_one(mixed: Herd, old_folder: Path) -> None:
    code = "import llama_herd; print(llama_herd.__file__)"
    for version, folder in (("old", old_folder), ("new", ROOT / "src")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(version, old_folder),  # type: ignore[arg-type]
            capture_output=True,
            text=True,
            check=True,
        )
        assert Path(done.stdout.strip()).parent.parent == folder


@pytest.mark.parametrize(("worker", "client"), [("old", "new"), ("new", "old")])
def test_jobs_of_every_kind_are_the_same_to_both_versions(
    mixed: Herd, worker: Version, client: Version
) -> None:
    mixed.start(worker)
    for given in JOBS.values():
        job_id = mixed.ask(client, "submit", given)
        seen = {version: mixed.ask(version, "stream", job_id) for version in ("old", "new")}
        results = {version: mixed.ask(version, "result", job_id) for version in ("old", "new")}
        assert seen["old"] == [known(*pair) for pair in zip(seen["new"], seen["old"], strict=True)]
        assert results["old"] == known(results["new"], results["old"])
        assert [event["seq"] for event in seen["new"]] == list(range(1, len(seen["new"]) + 1))
        assert seen["new"][-1]["finish_reason"] in ("stop", "length")


def known(told: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What both versions know of it: ours has fields that the older one does not read."""
    return {name: told[name] for name in other}


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_a_job_goes_on_in_a_worker_of_the_other_version(mixed: Herd, first: Version, second: Version) -> None:
    given = {
        "prompt": "Once upon a time",
        "sampling": {"temperature": 0, "max_tokens": 300, "ignore_eos": True, "logprobs": True},
    }
    killed = mixed.start(first)
    whole_id = mixed.ask(second, "submit", given)
    whole = mixed.ask(first, "result", whole_id)
    job_id = mixed.ask(second, "submit", {**given, "flush_ms": 0})
    with Client(mixed.url, model="tales") as client:
        wait_until(lambda: num_tokens(client, job_id) > 20, "tokens")
        killed.kill()
        mixed.start(second)
        events = list(client.stream(job_id, timeout_s=120))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count("started") == 2
    assert sum(event.type == "end" for event in events) == 1
    for version in ("old", "new"):
        result = mixed.ask(version, "result", job_id)
        assert (result["text"], result["finish_reason"]) == (whole["text"], "length")


def num_tokens(client: Client, job_id: str) -> int:
    return client.job(job_id).tokens


@pytest.mark.parametrize("client", ["old", "new"])
def test_a_batch_runs_on_workers_of_both_versions(mixed: Herd, client: Version) -> None:
    for version in ("old", "new"):
        mixed.start(version)
    sampling = {"temperature": 0, "max_tokens": 12}
    rows = [{"prompt": f"Tale {number}", "sampling": sampling} for number in range(24)]
    answers = mixed.ask(client, "batch", rows)
    assert [number for number, _ in answers] == list(range(24))
    assert answers == mixed.ask("new" if client == "old" else "old", "batch", rows)


@pytest.mark.parametrize(("worker", "client"), [("old", "new"), ("new", "old")])
def test_a_cancel_reaches_a_worker_of_the_other_version(
    mixed: Herd, worker: Version, client: Version
) -> None:
    mixed.start(worker)
    given = {"prompt": "Once", "sampling": {"max_tokens": 1000, "ignore_eos": True}}
    assert mixed.ask(client, "cancel", given)["finish_reason"] == "cancelled"


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")], ids=["upgrade", "rollback"])
def test_workers_change_their_version_and_every_job_ends_after_one_start_or_goes_on(
    mixed: Herd, first: Version, second: Version
) -> None:
    """The second beside the first, then SIGTERM to the first, as the page on operation says."""
    leaving = mixed.start(first)
    given = {"prompt": "Once", "sampling": {"temperature": 0, "max_tokens": 200, "ignore_eos": True}}
    job_ids = [mixed.ask(version, "submit", given) for version in ("old", "new") for _ in range(6)]
    with Client(mixed.url, model="tales") as client:
        wait_until(lambda: any(num_tokens(client, one) > 20 for one in job_ids), "some are in the middle")
        mixed.start(second)
        assert leaving.stop() == 0
        results = [mixed.ask(second, "result", job_id) for job_id in job_ids]
        assert [(one["finish_reason"], len(one["ids"])) for one in results] == [("length", 200)] * 12
        assert len({one["text"] for one in results}) == 1
        records = [client._run(client._core.ledger.record(job_id)) for job_id in job_ids]
        assert [record and record.deaths for record in records] == [0] * 12
        assert client.dead() == []
