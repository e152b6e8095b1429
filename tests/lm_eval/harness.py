"""lm-evaluation-harness as its own command, unmodified: what it finds by a kind of model."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Found(NamedTuple):
    """The figures of one task, and its rows in their order."""

    figures: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def scores(self) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether it is the greedy one."""
        return [(float(one[0]), str(one[1]) == "True") for row in self.rows for one in row["filtered_resps"]]

    @property
    def sums(self) -> list[float]:
        """The log-likelihood of each whole text."""
        return [float(row["filtered_resps"][0]) for row in self.rows]

    @property
    def texts(self) -> list[str]:
        """The output of each row."""
        return [row["resps"][0][0].strip() for row in self.rows]


def evaluate(
    tasks: Path, names: str, kind: str, options: Mapping[str, object], *words: str, key: str = ""
) -> dict[str, Found]:
    """What it finds by a kind of model in each task; the tasks lie in a folder, their data where it is run.

    names: of the tasks, with commas. options: of the model. words: of its command. key: of the gateway.
    """
    told = ",".join(f"{name}={value}" for name, value in options.items())
    output = Path(mkdtemp())
    command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", told]
    command += ["--tasks", names, "--include_path", str(tasks), "--output_path", str(output), "--log_samples"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": key, "HF_HOME": str(output / "cache")}
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=env, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (results,) = output.rglob("results_*.json")
    figures = json.loads(results.read_text())["results"]
    return {name: Found(figures[name], _rows(output, name)) for name in names.split(",")}


def _rows(output: Path, name: str) -> list[dict[str, Any]]:
    (samples,) = output.rglob(f"samples_{name}_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["doc_id"]))
