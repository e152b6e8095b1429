"""A project of Compose on a real Docker engine, made of a copy of the repository."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from llama_herd.local.redis_server import free_port
from tests.compose_model import GPU, MAIN, ROOT, SECURE, project
from tests.engines.servers import PROGRAMS

#: A build without anything in a cache takes minutes.
PATIENCE_S = 1500
#: What the build reads, and what compose mounts.
_FILES = (
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
IMAGE = "llama-herd:cpu"
_WAIT = ("--wait", "--wait-timeout", "600")
#: The documented end of all.
DOWN = "docker compose --profile '*' down"
#: The image of llama.cpp's server, around the program of this machine, on the base of our own image.
_LLAMA_SERVER = """\
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends curl libgomp1
COPY llama-server /app/
RUN ["/app/llama-server", "--version"]
ENTRYPOINT ["/app/llama-server"]
"""
#: Images with this label go at the end.
_STAND_IN = "llama-herd.stand-in"


class Engine(NamedTuple):
    """A copy of the repository, and a project of Compose made of it, on ports of its own."""

    folder: Path
    project: str
    redis_port: int
    gateway_port: int

    def run(self, *words: str, code: int = 0) -> str:
        """What a command says; it must end with this code."""
        ours = ("HERD_", "COMPOSE_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env |= {
            "COMPOSE_PROJECT_NAME": self.project,
            "REDIS_PORT": str(self.redis_port),
            "GATEWAY_PORT": str(self.gateway_port),
            "PROMETHEUS_PORT": "0",
            "GRAFANA_PORT": "0",
            "WANTED": "3",
        }
        done = subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    def line(self, line: str) -> str:
        """What a line of the documents says, as a shell reads it; `up` waits until all are healthy."""
        return self.run("bash", "-c", " ".join((line, *_WAIT)) if " up" in line else line)

    def docker(self, *words: str, code: int = 0) -> str:
        return self.run("docker", *words, code=code)

    def compose(self, *words: str, code: int = 0) -> str:
        return self.docker("compose", *words, code=code)

    def up(self, *options: str) -> None:
        """Redis and two workers, and what the options add; healthy."""
        self.compose(*options, "up", *_WAIT)

    def forget(self) -> None:
        """End all of it, with the volumes, also that of GPUs."""
        self.compose("-f", MAIN, "-f", GPU, "--profile", "*", "down", "--volumes")

    def named(self, kind: str) -> list[str]:
        """The names of this project's containers, networks or volumes."""
        name = "{{.Names}}" if kind == "container" else "{{.Name}}"
        return self._listed(kind, name)

    def services(self) -> list[str]:
        """The service of each container, also of one that has ended."""
        return sorted(self._listed("container", '{{.Label "com.docker.compose.service"}}'))

    def workers(self) -> list[str]:
        """The names of the workers' containers."""
        return [name for name in self.named("container") if "-worker-" in name]

    def _listed(self, kind: str, shape: str) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        everything = ["--all"] if kind == "container" else []
        return self.docker(kind, "ls", *everything, "--filter", label, "--format", shape).split()

    def inspect(self, container: str, shape: str) -> str:
        """A part of what the engine knows of a container."""
        return self.docker("inspect", container, "--format", shape).strip()

    def health(self, container: str) -> str:
        return self.inspect(container, "{{.State.Health.Status}}")

    def let_die(self, container: str) -> None:
        """End its process from outside: for the engine it dies by itself, other than by `docker kill`."""
        pid = self.inspect(container, "{{.State.Pid}}")
        self.docker("run", "--rm", "--pid", "host", "--entrypoint", "sh", IMAGE, "-c", f"kill -KILL {pid}")

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"

    def layers(self) -> list[str]:
        """The layers of the image, by their contents."""
        return self.docker("image", "inspect", IMAGE, "--format", '{{join .RootFS.Layers " "}}').split()

    def last_layer_bytes(self) -> int:
        sizes = self.docker("history", "--human=false", "--format", "{{.Size}}", IMAGE).split()
        return next(int(one) for one in sizes if int(one))

    def ask_for(self, services: set[str], files: tuple[str, ...]) -> None:
        """Skip by name where these services cannot be had here."""
        if GPU in files and "nvidia" not in self.docker("info", "--format", "{{json .Runtimes}}"):
            pytest.skip("the engine has no NVIDIA runtime")
        described: dict[str, dict[str, Any]] = project(*files)["services"]
        for image in sorted(described[name]["image"] for name in services if "build" not in described[name]):
            is_had = any(_ends_well("docker", *words, image) for words in (["image", "inspect"], ["pull"]))
            if not is_had and not ("llama.cpp" in image and _made_here(image)):
                pytest.skip(f"no registry in reach has {image}")


def _ends_well(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _made_here(image: str) -> bool:
    """Whether this image of llama-server could be made of the program that `make test-engines` compiles."""
    program = PROGRAMS / "llama-server"
    if not program.exists():
        return False
    base = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]
    with TemporaryDirectory() as folder:
        shutil.copy2(program, folder)
        Path(folder, "Dockerfile").write_text(_LLAMA_SERVER.format(base=base))
        return _ends_well("docker", "build", "--label", _STAND_IN, "--tag", image, folder)


def _forget_stand_ins() -> None:
    """Else they would be taken for what their names say."""
    found = ("docker", "image", "ls", "--quiet", "--filter", f"label={_STAND_IN}")
    for image in subprocess.run(found, capture_output=True, text=True, check=True).stdout.split():
        subprocess.run(["docker", "image", "rm", image], check=True, capture_output=True)


@contextmanager
def started_engine(folder: Path) -> Iterator[Engine]:
    """The image, built from a copy in this folder. At the end it alone is left, beside images of others."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    if not _ends_well("docker", "info"):
        pytest.skip("no Docker engine answers")
    if not _ends_well("docker", "compose", "version"):
        pytest.skip("no docker compose")
    for name in _FILES:
        shutil.copy(ROOT / name, folder)
    for name in ("src", "deploy"):
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    made = Engine(folder, f"herd-test-{os.getpid()}", free_port(), free_port())
    made.compose("build", "worker")
    try:
        yield made
    finally:
        made.forget()
        _forget_stand_ins()
