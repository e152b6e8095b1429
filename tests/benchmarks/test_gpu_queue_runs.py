"""When requests arrive, and how many rows a card has room for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.queue_runs import poisson_times
from benchmarks.gpu.scale import FULL

pytestmark = pytest.mark.long


def test_requests_arrive_at_the_rate_that_is_asked_for() -> None:
    times = poisson_times(rate=50.0, duration_s=60.0)
    assert times == sorted(times)
    assert times[-1] < 60
    assert len(times) == pytest.approx(3000, rel=0.06)


@pytest.mark.parametrize(("gib", "num_rows"), [(139, 256), (78, 208), (20, 1)])
def test_a_card_gets_as_many_rows_as_it_has_room_for(
    gib: int, num_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(total_memory=gib << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    bench = Bench(FULL, torch.device("cuda:0"), tmp_path, None)
    assert bench.fitting(FULL.saturation, Format.BF16) == replace(FULL.saturation, num_rows=num_rows)
