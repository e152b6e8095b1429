"""Prometheus's own tool says that every alert rings when it should."""

import shutil
import subprocess
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("ringing_alerts.yml")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool command")
def test_every_alert_rings_when_it_should() -> None:
    done = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
