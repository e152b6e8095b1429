"""Prometheus's own tool says that every alert rings when it should."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.worker.metrics.scaling import SCALER

CASES = Path(__file__).with_name("ringing_alerts.yml")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool command")
def test_every_alert_rings_when_it_should() -> None:
    done = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


#: What two workers and a gateway tell of what is due: the same of the same tenant.
DUE = {
    "instance='a',model_name='tales',tenant='t'": 5,
    "instance='b',model_name='tales',tenant='t'": 5,
    "instance='b',model_name='tales',tenant='u'": 2,
    "instance='b',model_name='nobodys',tenant='t'": 300,
}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool command")
@pytest.mark.parametrize(("rows", "jobs"), [({}, 7), ({"a": 3, "b": 1}, 11)], ids=["none", "two"])
def test_a_scaler_counts_the_due_jobs_of_its_model_once_and_its_rows(
    rows: dict[str, int], jobs: int, tmp_path: Path
) -> None:
    series = {f"herd_queue_due_jobs{{{labels}}}": value for labels, value in DUE.items()}
    for instance, num_rows in rows.items():
        labels = f"instance={instance!r},model_name='tales'"
        series |= {f"herd_num_requests_running{{{labels}}}": num_rows}
        series |= {f"herd_num_requests_waiting{{{labels}}}": 0}
    found = {"labels": '{model_name="tales"}', "value": jobs}
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value}"} for name, value in series.items()],
        "promql_expr_test": [{"expr": SCALER, "eval_time": "0s", "exp_samples": [found]}],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump({"tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
