"""Prometheus's own tool says that every alert rings when it should."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llama_herd.error_code import ErrorCode
from tests.promql import evaluate, samples

CASES = Path(__file__).with_name("ringing_alerts.yml")
ROOT = Path(__file__).parents[2]
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_every_alert_leads_to_what_to_do(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    (row,) = (line for line in (ROOT / page).read_text().splitlines() if f'<a id="{anchor}"></a>' in line)
    name, when, what = (cell.strip() for cell in row.strip("|").split(" | "))
    assert name == f"`{alert['alert']}`"
    assert anchor == alert["alert"].lower()
    assert when
    assert what


def test_no_job_that_is_itself_at_fault_rings() -> None:
    (query,) = (one["expr"] for one in ALERTS if one["alert"] == "HerdFailures")
    (left_out,) = re.findall(r'code!~"(.+?)"', query)
    at_fault = {code for code in ErrorCode if code.is_bad_input or code in ("cancelled", "deadline")}
    assert {code for code in ErrorCode if re.fullmatch(left_out, code)} == at_fault


def test_what_somebody_has_paused_or_drained_rings_no_other_alert() -> None:
    told = samples(
        """
        herd_queue_paused{model_name="p",tenant="t"} 1
        herd_queue_due_jobs{model_name="p",tenant="t"} 3
        herd_queue_oldest_seconds{model_name="p",tenant="t",lane="normal"} 900
        herd_worker_state{model_name="p",state="ready"} 0
        herd_worker_state{model_name="p",state="drained"} 1
        """.replace("        ", ""),
        instance="d",
    )
    others = ("HerdQueueNotServed", "HerdQueueOld", "HerdWorkerNotReady")
    queries = {one["alert"]: one["expr"] for one in ALERTS}
    assert [name for name in others if evaluate(queries[name], told)] == []
    neither = {labels: 0.0 if ("state", "drained") in labels else value for labels, value in told.items()}
    neither |= {labels: 0.0 for labels in told if ("__name__", "herd_queue_paused") in labels}
    assert [name for name in others if evaluate(queries[name], neither)] == list(others)


def test_a_queue_that_one_tenant_has_paused_silences_no_other() -> None:
    told = samples(
        """
        herd_queue_paused{model_name="p",tenant="t"} 1
        herd_queue_due_jobs{model_name="p",tenant="t"} 3
        herd_queue_due_jobs{model_name="p",tenant="u"} 3
        """.replace("        ", ""),
        instance="d",
    )
    queries = {one["alert"]: one["expr"] for one in ALERTS}
    assert [dict(one)["tenant"] for one in evaluate(queries["HerdQueueNotServed"], told)] == ["u"]


def test_every_alert_is_rung_by_the_cases() -> None:
    cases = CASES.read_text()
    assert [alert["alert"] for alert in ALERTS if f'alertname="{alert["alert"]}"}}' not in cases] == []


@pytest.mark.long
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool command")
def test_every_alert_rings_when_it_should() -> None:
    done = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
