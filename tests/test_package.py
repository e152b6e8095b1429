"""What an installation brings: a client no torch, a worker everything, nobody the tests."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from contextlib import closing
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.extras import MODULES, install_command
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.cli.herd_command import environment

pytestmark = pytest.mark.program

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "llama_herd"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skipped = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
    for link in ("model", "tasks", "worker"):  # nothing needs them
        (source / link).unlink(missing_ok=True)
    flags = ["-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, str(source)], check=True)
    (path,) = folder.glob("llama_herd-*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_all_packages_their_scripts_and_the_model(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in (
        "cli/batch/command.py",
        "local/redis_server.py",
        "model/llama2.py",
        "model/bundled/tales.gguf",
        "model/kernels/native/library.cpp",
        "model/kernels/native/pool.h",
        "tasks/client/client.py",
        *(f"tasks/gateway/page/{file.name}" for file in (PACKAGE / "tasks/gateway/page").iterdir()),
        "tasks/ledger/lua/emit.lua",
        "worker/pool.py",
    ):
        assert f"llama_herd/{name}" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"llama_herd"}


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def needs_of(wheel: zipfile.ZipFile) -> list[str]:
    return metadata_of(wheel).get_all("Requires-Dist") or []


def test_the_licence_travels_along_and_is_the_one_of_the_bundled_model(wheel: zipfile.ZipFile) -> None:
    fields = metadata_of(wheel)
    assert fields["License-Expression"] == "Apache-2.0"
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
    with GGUFFile.open(BUNDLED_MODEL) as model:
        assert model.metadata["general.license"] == "Apache-2.0"


def test_a_client_needs_no_torch_and_a_worker_does(wheel: zipfile.ZipFile) -> None:
    torch = [need for need in needs_of(wheel) if need.startswith("torch")]
    assert torch
    assert all("extra == 'worker'" in need.replace('"', "'") for need in torch)


def test_a_client_brings_no_celery_and_no_command_line(wheel: zipfile.ZipFile) -> None:
    """A Celery shop keeps its own version of Celery, and its own redis-py."""
    plain = {re.split(r"[^a-z-]", need)[0] for need in needs_of(wheel) if "extra ==" not in need}
    assert plain == {"annotated-types", "pydantic", "pydantic-settings", "redis"}


Done = subprocess.CompletedProcess[str]

#: What an installation without any extra has not.
EXTRAS = ("celery", "kombu", "click", *MODULES["cli"], *MODULES["worker"])


def run_without(
    modules: Iterable[str], code: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that lacks some modules."""
    missing = f"import sys; sys.modules.update(dict.fromkeys({sorted(modules)}))"
    return subprocess.run(
        [sys.executable, "-c", f"{missing}\n{code}", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )


HERD = "from llama_herd.cli import main; main()"

#: All that a client does without a worker, with both clients.
CLIENT = """
import asyncio
from llama_herd.tasks import AsyncClient, Client
with Client() as client:
    job_id = client.submit(prompt="x", priority=1)
    client.cancel(job_id)
    print([event.type for event in client.stream(job_id)], client.result(job_id).finish_reason)
    client.submit(prompt="y", job_id="waits")
    client.purge(job_id)
    print(client.status().depth, client.dead(), client.workers())

async def main():
    async with AsyncClient() as client:
        print(await client.cancel("waits"), (await client.result("waits")).finish_reason)

asyncio.run(main())
"""


@pytest.mark.redis
def test_without_any_extra_the_clients_do_all_they_do(redis_url: str, redis: Redis) -> None:
    done = run_without(EXTRAS, CLIENT, HERD_REDIS_URL=redis_url)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['end'] cancelled", "2 [] []", "cancelled cancelled"]
    # The other message is in the list of urgent ones: of the job that was forgotten it has the id alone.
    (message,) = redis.lrange("herd.tales", 0, -1)
    assert json.loads(message)["headers"]["id"] == "waits"


def test_without_its_extra_the_command_says_in_one_line_what_to_install() -> None:
    for arguments in ([], ["--help"], ["worker"]):
        done = run_without(EXTRAS, HERD, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        fix = install_command("cli")
        assert done.stderr == f"herd: the command needs rich and typer. Fix: {fix}\n"


#: Runs one command after another, each as `herd` would.
EACH = """
import sys
from llama_herd.cli import main
for line in sys.argv[1:]:
    sys.argv = ["herd", *line.split()]
    try:
        main()
    except SystemExit as end:
        print(f"exit code {end.code} of herd {line}", file=sys.stderr)
"""

COMMANDS = (
    *("--help", "status", "status --json", "settings", "batch --help", "dead list", "acl --help"),
    *(
        "watch nothing",
        "cancel nothing",
        "purge nothing",
        "purge --all-ended",
        "generate --help",
        "health",
        "doctor",
    ),
)


@pytest.mark.redis
def test_a_client_with_a_command_line_needs_no_celery(redis_url: str) -> None:
    done = run_without({"celery", "kombu", *MODULES["worker"]}, EACH, *COMMANDS, HERD_REDIS_URL=redis_url)
    assert done.returncode == 0, done.stderr
    ends = re.findall("exit code (.) of herd (.*)", done.stderr)
    assert [command for _, command in ends] == list(COMMANDS)
    assert {code for code, _ in ends} <= {"0", "1", "2"}
    assert "pip install" not in done.stderr


#: The code of a client's commands, which the command line loads when they run.
OF_CLIENTS = (
    "app",
    "batch.runner",
    "cancel",
    "status_view",
    "transcript",
    "environment",
)


def test_the_code_of_a_clients_commands_brings_no_worker() -> None:
    code = "\n".join(f"import llama_herd.cli.{name}" for name in OF_CLIENTS)
    done = run_without((), f"{code}\nimport sys; print(*sys.modules)")
    assert "llama_herd.tasks.client.client" in done.stdout, done.stderr
    assert "llama_herd.worker" not in done.stdout
    assert "llama_herd.local" not in done.stdout


#: Runs one command, and says which modules it has loaded.
ONE = """
import sys
from llama_herd.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.redis
@pytest.mark.parametrize(
    "command", ["status", "status --json", "jobs", "watch x", "batch in.txt -o out.jsonl"]
)
def test_a_clients_command_that_runs_brings_no_worker(redis_url: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "in.txt").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HERD_")}
    done = subprocess.run(
        [sys.executable, "-c", ONE, *command.split()],
        cwd=tmp_path,
        env=kept | {"HERD_REDIS_URL": redis_url, "HERD_GATEWAY_PORT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "llama_herd.tasks.client.client" in done.stderr, done.stderr
    assert "llama_herd.worker" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["worker"],
        ["demo"],
        ["generate", "--local", "hi"],
        ["inspect"],
        ["tokenize"],
        ["kernels", "build"],
    ],
    ids=" ".join,
)
def test_on_a_client_what_needs_a_workers_packages_says_what_to_install(command: list[str]) -> None:
    done = run_without(MODULES["worker"], HERD, *command)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert install_command("worker") in done.stderr


def test_nothing_tells_anyone_to_install_from_an_index_that_has_it_not() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    told = re.compile(r"pip install +[\"']?llama[-_]herd")
    assert [path for path in files if path.is_file() and told.search(path.read_text())] == []


def test_without_its_extra_the_gateway_says_what_to_install() -> None:
    done = run_without({"starlette", "uvicorn", *MODULES["worker"]}, HERD, "gateway")
    assert done.returncode == 2
    assert install_command("gateway") in done.stderr


@pytest.mark.redis
def test_a_gateway_needs_neither_torch_nor_celery(redis_url: str) -> None:
    """It gets as far as to listen, at a port that another has."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        variables = {"HERD_REDIS_URL": redis_url, "HERD_GATEWAY_PORT": str(taken.getsockname()[1])}
        done = run_without({"celery", "kombu", *MODULES["worker"]}, HERD, "gateway", **variables)
        place = f"127.0.0.1:{taken.getsockname()[1]}"
    assert done.returncode == 2
    assert done.stderr == (
        f"herd: cannot listen at {place}: address already in use. Fix: choose another --port or --host\n"
    )
