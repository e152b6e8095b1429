"""How many workers a model gets: the queries over what a gateway really tells, while no worker is up."""

import shutil
import subprocess
from collections.abc import Callable
from math import ceil
from pathlib import Path
from time import time
from urllib.request import urlopen

import pytest
import yaml
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis, free_port
from llama_herd.ops import ledger_collector
from llama_herd.ops.exporter import Exporter
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.job_fields import JobFields
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S
from tests.deploy.scaling import ROOT, SCALERS, TRIGGERS, wanted
from tests.promql import NAME, Labels, Vector, evaluate, samples

pytestmark = [pytest.mark.redis, pytest.mark.long]

MODEL, OTHER = "llama", "other"
TENANTS = ("default", "acme")

#: Several workers' worth.
NUM_JOBS, NUM_TOKENS = 60, 4000


def submit(url: str, model: str, tenant: str = "default", not_before: int = 0) -> None:
    job: JobFields = {"prompt": "x", "model": model, "sampling": {"max_tokens": NUM_TOKENS}}
    if not_before:
        job["not_before"] = not_before
    with Client(url, tenant=tenant) as client:
        for _ in range(NUM_JOBS):
            client.submit(**job)


def backlog_here(url: str) -> None:
    submit(url, MODEL)


def backlog_of_two_tenants(url: str) -> None:
    for tenant in TENANTS:
        submit(url, MODEL, tenant)


def backlog_elsewhere(url: str) -> None:
    submit(url, OTHER)


def delayed_only(url: str) -> None:
    submit(url, MODEL, not_before=int(1000 * time()) + 3_600_000)


def nothing(url: str) -> None:
    """No job at all."""


Case = Callable[[str], None]
IDLE: list[Case] = [backlog_elsewhere, delayed_only, nothing]


def told(url: str) -> Vector:
    """What Prometheus has of two gateways after a scrape of each."""
    series: Vector = {}
    for instance in ("a", "b"):
        settings = WorkerSettings(
            redis_url=url,
            metrics_port=free_port(),
            models=f"{MODEL},{OTHER}",
            tenants=",".join(TENANTS),
        )
        exporter = Exporter.start(settings)
        assert exporter is not None
        with urlopen(f"http://127.0.0.1:{settings.metrics_port}/metrics", timeout=PATIENCE_S) as reply:
            series |= samples(reply.read().decode(), instance=instance, job="herd")
        exporter.stop()
    return series


@pytest.fixture(scope="module")
def told_of(server: EmbeddedRedis) -> dict[Case, Vector]:
    """What is told in each case, however slow Redis is."""
    found = {}
    with pytest.MonkeyPatch.context() as patient, Redis.from_url(server.url) as redis:
        patient.setattr(ledger_collector, "WAIT_S", PATIENCE_S)
        for case in (backlog_here, backlog_of_two_tenants, *IDLE):
            redis.flushdb()
            case(server.url)
            found[case] = told(server.url)
    return found


@pytest.mark.parametrize("num_tenants", [1, 2])
def test_a_backlog_of_the_model_wants_workers_for_its_tokens(
    told_of: dict[Case, Vector], num_tenants: int
) -> None:
    series = told_of[backlog_here if num_tenants == 1 else backlog_of_two_tenants]
    tokens = num_tenants * NUM_JOBS * (NUM_TOKENS + 1)
    assert wanted(series, MODEL) == ceil(tokens / TRIGGERS[0].threshold) > num_tenants
    assert wanted(series, OTHER) == 0


@pytest.mark.parametrize("case", IDLE)
def test_nothing_that_is_due_for_the_model_wants_no_worker(told_of: dict[Case, Vector], case: Case) -> None:
    assert wanted(told_of[case], MODEL) == 0


@pytest.mark.parametrize(
    ("query", "case"),
    [
        ("sum(max by (tenant) (herd_queue_due_tokens))", backlog_elsewhere),
        ('sum(max by (tenant) (herd_queue_tokens{model_name="tales"}))', delayed_only),
        ('sum(herd_queue_due_tokens{model_name="tales"})', backlog_here),
    ],
    ids=["all models", "delayed jobs", "each gateway"],
)
def test_these_cases_tell_a_query_that_counts_too_much(
    told_of: dict[Case, Vector], query: str, case: Case
) -> None:
    wrong = TRIGGERS[0]._replace(query=query)
    assert wanted(told_of[case], MODEL, [wrong]) > wanted(told_of[case], MODEL)


def test_no_answer_about_what_waits_is_not_0() -> None:
    """A Prometheus that has lost sight of the gateways takes no worker away."""
    with pytest.raises(ValueError, match="not enough values"):
        wanted({}, MODEL)


def test_the_page_has_the_queries_of_the_object() -> None:
    assert tuple(trigger.query for trigger in TRIGGERS) == SCALERS


def labels(name: str, **values: str) -> Labels:
    return frozenset({NAME: name, **values}.items())


def running(**rows: int) -> Vector:
    """Workers with so many rows in their batches, and one waiting each."""
    return {
        labels(f"herd_num_requests_{state}", model_name=MODEL, instance=instance): value
        for instance, num_rows in rows.items()
        for state, value in (("running", num_rows), ("waiting", 1))
    }


def test_rows_keep_their_workers_though_nothing_waits(told_of: dict[Case, Vector]) -> None:
    assert wanted(told_of[nothing] | running(a=30, b=32), MODEL) == 2
    assert wanted(told_of[nothing] | running(a=1), MODEL) == 1
    assert wanted(told_of[nothing] | running(a=1), OTHER) == 0


(NOT_SERVED,) = (
    rule["expr"]
    for group in yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if rule["alert"] == "HerdQueueNotServed"
)


def test_the_alert_of_an_unserved_queue_names_its_model_alone(told_of: dict[Case, Vector]) -> None:
    def ringing(case: Case) -> list[str]:
        return [dict(one)["model_name"] for one in evaluate(NOT_SERVED, told_of[case])]

    assert ringing(backlog_here) == [MODEL]
    assert ringing(backlog_elsewhere) == [OTHER]
    assert ringing(delayed_only) == ringing(nothing) == []
    served = labels("herd_workers", model_name=MODEL, state="ready", instance="a")
    assert evaluate(NOT_SERVED, told_of[backlog_here] | {served: 1.0}) == {}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool command")
@pytest.mark.parametrize("case", [backlog_of_two_tenants, *IDLE])
def test_prometheus_itself_answers_the_same(told_of: dict[Case, Vector], case: Case, tmp_path: Path) -> None:
    series = told_of[case] | running(a=30, b=32)
    queries = [*(one.query.replace("tales", MODEL) for one in TRIGGERS), NOT_SERVED]
    answers = {query: evaluate(query, series) for query in queries}
    test = {
        "interval": "15s",
        "input_series": [{"series": written(one), "values": f"{value:.0f}"} for one, value in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "0s",
                "exp_samples": [{"labels": written(one), "value": value} for one, value in found.items()],
            }
            for query, found in answers.items()
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def written(labels: Labels) -> str:
    """A series as promtool reads it."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels)) + "}"
