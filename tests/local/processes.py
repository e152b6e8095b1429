"""Real worker processes for tests, by the few words that tests say of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from redis import Redis

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import wait_until as wait_until
from tests.local.forked_python import start_forked
from tests.local.tended_worker import TendedWorker

#: How long a worker may take to load torch, or a condition to come true; far more than it needs.
PATIENCE_S = 40.0


class ForkedWorker(TendedWorker):
    """No new Python: it is forked off a process that has loaded torch."""

    def start(self) -> Self:
        forked = start_forked(self.command, self.environment, self.log_path, self.cwd)
        self.process = forked  # type: ignore[assignment]
        return self


class WorkerProcess(ForkedWorker):
    """The same; `settings` are fields of WorkerSettings, strings or not.

    held_by, step_s: as in `standstill`.
    """

    def __init__(
        self,
        redis_url: str,
        model: Path,
        name: str,
        log: Path,
        *,
        include: str = "",
        env: Mapping[str, str] | None = None,
        held_by: Path | None = None,
        step_s: float = 0.0,
        **settings: object,
    ) -> None:
        if held_by is not None:
            holder = standstill(held_by, step_s)
            include = ",".join(filter(None, (include, holder["include"])))
            env = {**(env or {}), **holder["env"]}
        read = WorkerSettings.read(redis_url=redis_url, model=model, **settings)
        super().__init__(read, f"{name}@test", log, include=include, env=env)

    def forget_peak(self) -> None:
        """Let `peak_mb` count from now on."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def peak_mb(self) -> float:
        """Most memory that it has held at once."""
        return peak_bytes(self.process.pid) / (1 << 20)


def standstill(folder: Path, step_s: float = 0.0) -> dict[str, Any]:
    """Options of a worker of which `tests.worker.standstill` holds parts up, as files in a folder say.

    step_s: how long each of its steps lasts at least: jobs that are to run as long as a test needs them
    would else end within seconds, and a busy machine may hold a test up for longer.
    """
    env = {"STANDSTILL": str(folder), "STANDSTILL_STEP_S": str(step_s)}
    return {"include": "tests.worker.standstill", "env": env}


def hold(folder: Path, num_tokens: int = 0) -> None:
    """Let workers with `tests.worker.standstill` step no more, once a sequence has so many tokens.

    It takes the place of what was said before.
    """
    whole = folder / "held"
    whole.write_text(str(num_tokens or ""))
    whole.rename(folder / "engine")


def release(folder: Path) -> None:
    """Let them step again."""
    (folder / "engine").unlink()


@contextmanager
def held(folder: Path, num_tokens: int = 0) -> Iterator[None]:
    """Within the block `hold` holds."""
    hold(folder, num_tokens)
    try:
        yield
    finally:
        release(folder)


def peak_bytes(pid: int | str) -> int:
    """Most memory that a process has held at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(peak)


def kombu_note(redis: Redis, job_id: str) -> list[Any]:
    """Kombu's note of a running job's message: the message, its exchange, its queue.

    Beside it may lie the notes of jobs that ended a moment ago.
    """
    notes: list[list[Any]] = [json.loads(note) for note in redis.hvals(Ledger().unacked_key)]
    (note,) = (note for note in notes if note[0]["headers"]["id"] == job_id)
    return note
