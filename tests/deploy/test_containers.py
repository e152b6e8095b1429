"""The containers on a real engine, by the lines of the documents: `make test-compose`. Skipped where none is.

Everything is in a project and on ports of its own, and is taken away at the end; the images stay.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from llama_herd.tasks.client.client import Client
from tests.cli.herd_command import invoke
from tests.compose_model import GPU, MAIN, ROOT, SECURE

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

#: A build without anything in a cache takes minutes.
PATIENCE_S = 1500
#: What the build reads, and what compose mounts.
FILES = (
    "Dockerfile",
    ".dockerignore",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    MAIN,
    GPU,
    SECURE,
)
#: The most bytes of a layer of our own code.
MOST_OF_OURS = 15_000_000

#: Longer than a kill takes.
LONG: dict[str, Any] = {"prompt": "Once upon a time", "sampling": {"max_tokens": 200, "ignore_eos": True}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Engine(NamedTuple):
    """A copy of the repository, and a project of Compose made of it."""

    folder: Path
    project: str
    redis_port: int
    gateway_port: int

    def docker(self, *words: str, code: int = 0) -> str:
        """What the engine says; it must end with this code."""
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("HERD_", "COMPOSE_"))
        }
        env |= {
            "COMPOSE_PROJECT_NAME": self.project,
            "REDIS_PORT": str(self.redis_port),
            "GATEWAY_PORT": str(self.gateway_port),
        }
        done = subprocess.run(
            ["docker", *words], cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    def compose(self, *words: str, code: int = 0) -> str:
        return self.docker("compose", *words, code=code)

    def named(self, kind: str) -> list[str]:
        """The names of this project's containers, networks or volumes."""
        label = f"label=com.docker.compose.project={self.project}"
        name = "{{.Names}}" if kind == "container" else "{{.Name}}"
        everything = ["--all"] if kind == "container" else []
        return self.docker(kind, "ls", *everything, "--filter", label, "--format", name).split()

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def layers(self) -> list[str]:
        """The layers of the image, by their contents."""
        told = self.docker("image", "inspect", "llama-herd:cpu", "--format", '{{join .RootFS.Layers " "}}')
        return told.split()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    for words, lack in (
        (["info"], "no Docker engine answers"),
        (["compose", "version"], "no docker compose"),
    ):
        if subprocess.run(["docker", *words], capture_output=True).returncode:
            pytest.skip(lack)
    folder = tmp_path_factory.mktemp("herd")
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in ("src", "deploy"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    made = Engine(folder, f"herd-test-{os.getpid()}", free_port(), free_port())
    made.compose("build", "worker")
    try:
        yield made
    finally:
        made.compose("--profile", "*", "down", "--volumes")


@pytest.fixture
def herd(engine: Engine) -> Iterator[Engine]:
    """Redis and two workers."""
    engine.compose("up", "--wait", "--wait-timeout", "600")
    yield engine
    engine.compose("--profile", "*", "down", "--volumes")


def test_two_workers_are_healthy_and_run_jobs(herd: Engine) -> None:
    shown = herd.compose("ps", "--format", "{{.Service}} {{.Health}}").splitlines()
    assert sorted(shown) == ["redis healthy", "worker healthy", "worker healthy"]
    with Client(herd.redis_url) as client:
        results = [client.result(client.submit(prompt="Once"), timeout_s=60) for _ in range(4)]
    assert {one.finish_reason for one in results} <= {"length", "stop"}
    assert "loading model" in herd.compose("logs", "worker")


def test_a_killed_worker_s_job_goes_on_in_the_other(herd: Engine) -> None:
    with Client(herd.redis_url) as client:
        job = client.submit(**LONG)
        started = next(event for event in client.stream(job) if event.type == "started")
        host = started.worker.partition("@")[2]
        herd.docker("kill", host)  # a container's host name is the beginning of its id
        result = client.result(job, timeout_s=120)
    assert (result.finish_reason, result.attempts) == ("length", 2)
    herd.compose("up", "--wait", "--wait-timeout", "600")  # a kill by hand is none by itself
    assert len([name for name in herd.named("container") if "-worker-" in name]) == 2


def test_down_leaves_no_container_and_no_network_but_the_volume_with_the_jobs(herd: Engine) -> None:
    herd.compose("--profile", "gateway", "--profile", "two-models", "up", "--wait", "--wait-timeout", "600")
    with Client(herd.redis_url) as client:
        job = client.submit(prompt="Once", sampling={"max_tokens": 8})
        before = client.result(job, timeout_s=60)
    herd.compose("--profile", "*", "down")
    assert herd.named("container") == herd.named("network") == []
    assert f"{herd.project}_redis" in herd.named("volume")
    herd.compose("up", "--wait", "--wait-timeout", "600")
    with Client(herd.redis_url) as client:
        assert client.result(job, timeout_s=60) == before


def test_the_documented_gateway_has_workers(herd: Engine) -> None:
    key = herd.compose("run", "--rm", "keys", "create", "test")
    (key,) = re.findall(r"herd-[\w-]{20,}", key)
    herd.compose("--profile", "gateway", "up", "--wait", "--wait-timeout", "600")
    url = f"http://127.0.0.1:{herd.gateway_port}"
    asked = Request(
        f"{url}/v1/completions",
        data=b'{"model": "tales", "prompt": "Once", "max_tokens": 4}',
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urlopen(asked, timeout=120) as answer:
        assert b'"text"' in answer.read()
    with urlopen(f"{url}/docs", timeout=30) as page:
        assert page.status == 200
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"{url}/v1/models", timeout=30)


def test_a_wrong_setting_says_its_reason(engine: Engine) -> None:
    (engine.folder / ".env").write_text("HERD_SLOTS=0\n")
    try:
        said = engine.compose("up", "--wait", "--wait-timeout", "120", code=1)
        assert re.search(r"worker-\d.* (is unhealthy|exited)", said)
        shown = engine.compose("ps", "--all", "worker")
        assert re.search(r"(Restarting|Exited) \(2\)", shown)
        assert re.search(r"HERD_SLOTS.*0", engine.compose("logs", "--tail", "3", "worker"))
    finally:
        (engine.folder / ".env").unlink()
        engine.compose("--profile", "*", "down", "--volumes")


def test_users_and_passwords(engine: Engine) -> None:
    folder = engine.folder / "secrets"
    assert invoke("acl", str(folder), HERD_MODEL_NAME="tales").exit_code == 0
    for path in folder.iterdir():
        path.chmod(0o444)
    files = ("-f", MAIN, "-f", SECURE)
    try:
        engine.compose(*files, "up", "--wait", "--wait-timeout", "600")
        password = (folder / "default-operator.password").read_text().strip()
        with Client(f"redis://default-operator:{password}@127.0.0.1:{engine.redis_port}/0") as client:
            assert client.result(client.submit(prompt="Once"), timeout_s=60).finish_reason in (
                "length",
                "stop",
            )
        engine.compose(*files, "run", "--rm", "keys", "create", "test")
    finally:
        engine.compose(*files, "--profile", "*", "down", "--volumes")


def test_a_full_worker_stays_healthy(herd: Engine) -> None:
    with Client(herd.redis_url) as client:
        jobs = [client.submit(**LONG) for _ in range(200)]
        assert {client.result(job, timeout_s=900).finish_reason for job in jobs} == {"length"}
    for name in herd.named("container"):
        assert herd.docker("inspect", name, "--format", "{{.State.Health.FailingStreak}}").strip() == "0"


def test_a_changed_line_makes_and_ships_our_own_layer_alone(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = engine.layers()
    changed = engine.folder / "src/llama_herd/cli/health.py"
    as_it_was = changed.read_text()
    changed.write_text(f"{as_it_was}\n# a changed line\n")
    from_s = monotonic()
    engine.compose("build", "worker")
    seconds = monotonic() - from_s
    after = engine.layers()
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    size = engine.docker("history", "--human=false", "--format", "{{.Size}}", "llama-herd:cpu").split()
    num_bytes = next(int(one) for one in size if int(one))
    changed.write_text(as_it_was)
    engine.compose("build", "worker")  # no image with a foreign line stays
    with capsys.disabled():
        print(f"\na changed line: {seconds:.1f} s, a layer of {num_bytes / 1e6:.1f} MB")
    assert num_bytes < MOST_OF_OURS
    assert seconds < 120  # a third of it on a quiet machine


def test_the_image_has_no_health_check(engine: Engine) -> None:
    told = engine.docker("image", "inspect", "llama-herd:cpu", "--format", "{{json .Config.Healthcheck}}")
    assert told.strip() == "null"
