"""What a command takes until its first token: seconds and memory."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measured import Report, Table
from benchmarks.weights.files import MIXES, random_file
from benchmarks.weights.settings import SETTINGS, Setting
from llama_herd.worker.settings import BUNDLED_MODEL


def measure(folder: Path) -> Report:
    files = [random_file(folder, mix) for mix in MIXES]
    bundled = {setting.name: start(BUNDLED_MODEL, setting)["peak_bytes"] for setting in SETTINGS}
    return {"bundled_peak_bytes": bundled, "starts": list(_starts(files, SETTINGS))}


def _starts(files: Sequence[Path], settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
    for path in files:
        for setting in settings:
            _bring_into_memory(path)
            yield {
                "file": path.stem,
                "bytes": path.stat().st_size,
                "settings": setting.name,
                **start(path, setting),
            }


def _bring_into_memory(path: Path) -> None:
    """All find the file there. In pieces: a child's peak is never less than what its parent's once was."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def start(path: Path, setting: Setting) -> dict[str, float]:
    """Seconds and memory of a command that computes one token."""
    command = [sys.executable, "-m", "llama_herd.cli", "generate", "--local", "--model", str(path)]
    command += ["w1 w2", "--max-tokens", "1"]
    started_s = perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **setting.variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return {"seconds": round(perf_counter() - started_s, 2), "peak_bytes": 1024 * usage.ru_maxrss}


def tables(report: Report) -> Iterator[Table]:
    bundled = report["bundled_peak_bytes"]
    yield Table(
        ["file", "GB", "settings", "seconds to one token", "peak GB", "over the bundled model's, files"],
        [
            [
                one["file"],
                one["bytes"] / 1e9,
                one["settings"],
                one["seconds"],
                one["peak_bytes"] / 1e9,
                (one["peak_bytes"] - bundled[one["settings"]]) / one["bytes"],
            ]
            for one in report["starts"]
        ],
        "`herd generate --local` of one token, 1.1 B weights",
    )
