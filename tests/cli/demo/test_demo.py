"""The parts of the demo: what it counts and what it shows."""

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from llama_herd.cli.demo.command import next_steps
from llama_herd.cli.demo.demo import UNSERVED_S, demo_settings
from llama_herd.cli.demo.screen import PROMPTS, DemoJob, Figures, job_panel
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.events import End, Started, Token
from llama_herd.worker.settings import WorkerSettings

COMMON = {"v": 1, "job": "a", "epoch": 1}


def started() -> Started:
    return Started(**COMMON, at_ms=1, seq=1, attempt=1, worker="w", model="m", seed=1)


def token(seq: int, text: str) -> Token:
    return Token(**COMMON, seq=seq, i=seq - 2, ids=(seq,), text=text)


def end(seq: int, **fields: object) -> End:
    return End.model_validate({**COMMON, "seq": seq, "n": seq - 2, "attempts": 1, **fields})


def written(*times_s: float) -> DemoJob:
    """A job submitted at 10 s whose tokens came at `times_s`."""
    job = DemoJob("Once", seed=1, submitted_s=10.0)
    job.note(started(), 10.0)
    for seq, time_s in enumerate(times_s, start=2):
        job.note(token(seq, f" {seq}"), time_s)
    return job


def test_a_job_goes_from_queued_to_done() -> None:
    job = DemoJob("Once", seed=1)
    states = [job.state]
    for event in (started(), token(2, " upon"), token(3, " a time"), end(4, finish_reason="stop")):
        job.note(event, 1.0)
        states.append(job.state)
    assert states == ["queued", "prefill", "decode", "decode", "done"]
    assert (job.text, job.num_tokens) == (" upon a time", 2)


def test_a_job_that_does_not_end_by_itself_has_failed() -> None:
    job = DemoJob("Once", seed=1)
    job.note(end(2, finish_reason="error"), 1.0)
    assert job.state == "failed"


def test_figures_count_from_the_first_submission() -> None:
    figures = Figures.of([written(10.5, 10.6, 10.8), written(11.0, 11.4)], seconds=2.0)
    assert (figures.num_tokens, figures.seconds, figures.tokens_per_s) == (5, 2.0, 2.5)
    assert (figures.ttft.p50_s, figures.ttft.p95_s) == pytest.approx((0.5, 1.0))
    assert (figures.itl.p50_s, figures.itl.p95_s) == pytest.approx((0.2, 0.4))


@pytest.mark.parametrize(("width", "height", "lines_a_job"), [(80, 24, 2), (120, 40, 3), (80, 16, 1)])
def test_the_panel_keeps_its_size_and_shows_no_control_character(
    width: int, height: int, lines_a_job: int
) -> None:
    sizes = set()
    for text in ("", " a word", " many words and \x1b[31m\nanother line" * 40):
        jobs = [written(10.5) for _ in PROMPTS]
        for job in jobs:
            job.text = text
        out = io.StringIO()
        console = Console(file=out, width=width, height=height, color_system=None)
        console.print(job_panel(jobs, console))
        lines = out.getvalue().splitlines()
        sizes.add(len(lines))
        assert max(map(len, lines)) <= width
        assert "\x1b" not in out.getvalue()
    assert sizes == {lines_a_job * len(PROMPTS) + 2}


def test_next_steps_name_a_model_only_if_it_is_another_than_the_bundled(tmp_path: Path) -> None:
    bundled = next_steps(WorkerSettings(model=BUNDLED_MODEL))
    assert not any("--model" in command for command in bundled)
    other = next_steps(WorkerSettings(model=tmp_path / "my model.gguf"))
    assert all("--model" in command for command in other)
    assert str(tmp_path / "my model.gguf") in shlex.split(next(iter(other)))


def test_a_demo_keeps_to_its_own_redis_and_waits_for_no_other_model() -> None:
    own = demo_settings(WorkerSettings(tenants="acme", slots=3), "redis://here")
    assert (own.redis_url, own.tenants, own.slots) == ("redis://here", "", 3)
    assert 0 < own.unserved_timeout_s == UNSERVED_S < WorkerSettings().unserved_timeout_s
