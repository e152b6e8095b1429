"""A real worker runs jobs, and a gateway stands beside it: what they show over HTTP and in the log."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from celery import Celery
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from llama_herd.local.redis_server import EmbeddedRedis, free_port
from llama_herd.ops.logs import HEAD, JobLine
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.job_fields import JobFields
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.settings import WorkerSettings
from tests.batch_api import BatchApi
from tests.cli.gateway_process import GatewayProcess
from tests.deploy.scaling import SCALERS
from tests.local.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker]

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
PROMPT = "once upon a time in a village far away " * 6
NUM_JOBS, NUM_TOKENS = 6, 8


#: The jobs whose senders name a trace: submitted by our client, and sent by Celery.
TRACES = {"submitted": "0af7651916cd43dd8448eb211c80319c", "sent": "4bf92f3577b34da6a3ce929d0e0e4736"}


def traceparent(job_id: str) -> str:
    return f"00-{TRACES[job_id]}-00f067aa0ba902b7-01"


class Scrape(NamedTuple):
    """What a worker says of itself after some jobs. The jobs of `unserved` wait for ever."""

    families: dict[str, Metric]
    url: str
    log: str

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The log's lines of this event, or all; the others are Celery's banner."""
        lines = (json.loads(line) for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in lines if event in ("", line["event"])]

    @property
    def samples(self) -> dict[str, set[str]]:
        """The labels of each sample, by its name."""
        labels = defaultdict[str, set[str]](set)
        for family in self.families.values():
            for sample in family.samples:
                labels[sample.name] |= sample.labels.keys()
        return labels

    def value(self, sample_name: str, **labels: str) -> float:
        """The only sample of this name with these labels."""
        family = next(one for one in self.families.values() if sample_name.startswith(one.name))
        (value,) = (
            sample.value
            for sample in family.samples
            if sample.name == sample_name and labels.items() <= sample.labels.items()
        )
        return value


def read(url: str) -> dict[str, Metric]:
    with urlopen(url, timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {family.name: family for family in families}


def read_when(url: str, is_so: Callable[[dict[str, Metric]], bool], what: str) -> dict[str, Metric]:
    """What is told once it is so. A scrape during which Redis is slow tells nothing of the queues."""
    families: dict[str, Metric] = {}

    def is_read() -> bool:
        families.clear()
        families.update(read(url))
        return is_so(families)

    wait_until(is_read, what)
    return families


def has_unserved(families: dict[str, Metric]) -> bool:
    queues = families["herd_queue_jobs"].samples if "herd_queue_jobs" in families else []
    return any(one.value and one.labels["model_name"] == "unserved" for one in queues)


def is_zero(families: dict[str, Metric], name: str) -> bool:
    return not any(one.value for one in families[name].samples)


def has_all(families: dict[str, Metric]) -> bool:
    is_counted = not is_zero(families, "herd_request_failure")
    return has_unserved(families) and is_counted and is_zero(families, "herd_publisher_waiting_steps")


def rests(families: dict[str, Metric]) -> bool:
    """Whether a gateway has counted all that it began: a client has its answer before."""
    parts = ("answers", "batches")
    return all(is_zero(families, f"herd_gateway_{part}_under_way") for part in parts)


def run_jobs(client: Client, redis_url: str) -> None:
    """Two rounds: the second one finds its prompts in the cache. In each, one job belongs to a trace."""
    job: JobFields = {"prompt": PROMPT, "sampling": {"max_tokens": NUM_TOKENS}}
    job_ids = [client.submit(**job) for _ in range(NUM_JOBS // 2 - 1)]
    job_ids.append(client.submit(**job, job_id="submitted", traceparent=traceparent("submitted")))
    for job_id in job_ids:
        assert client.result(job_id, timeout_s=30).finish_reason == "length"
    job_ids = [client.submit(**job) for _ in range(NUM_JOBS // 2 - 1)]
    with Celery(broker=redis_url, backend=redis_url, set_as_current=False) as app:
        headers = {"traceparent": traceparent("sent")}
        app.send_task(TASK_NAME, kwargs=dict(job), task_id="sent", queue="herd.m", headers=headers)
    for job_id in [*job_ids, "sent"]:
        assert client.result(job_id, timeout_s=30).finish_reason == "length"


@pytest.fixture(scope="module")
def port() -> int:
    """Where the worker is going to serve its metrics."""
    return free_port()


@pytest.fixture(scope="module")
def gateway_port() -> int:
    """The same of the gateway."""
    return free_port()


@pytest.fixture(scope="module")
def prometheus_url(port: int, gateway_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus, if there is one here. It starts beside the worker: it takes five seconds to begin."""
    if shutil.which("prometheus") is None:
        yield ""
        return
    folder, own_port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{port}", f"127.0.0.1:{gateway_port}"]}]
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", folder)
    command = [
        *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        f"--web.listen-address=127.0.0.1:{own_port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{own_port}/api/v1/"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def scrape(
    server: EmbeddedRedis,
    endless_settings: WorkerSettings,
    port: int,
    gateway_port: int,
    prometheus_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scrape]:
    folder = tmp_path_factory.mktemp("log")
    own: dict[str, Any] = {"model_name": "m", "slots": 4, "log_level": "debug"}
    own |= {"metrics_port": port, "metrics_host": "127.0.0.1"}
    asked_at = {"HERD_METRICS_PORT": str(gateway_port), "HERD_MODEL_NAME": "m"}
    url = f"http://127.0.0.1:{port}/metrics"
    with (
        GatewayProcess(server.url, folder / "gateway.log", **asked_at) as gateway,
        WorkerProcess(server.url, endless_settings.model, "m", folder / "log", **own) as worker,
        Client(server.url, model="m") as client,
    ):
        run_jobs(client, server.url)
        for path in ("/health/live", "/v1/jobs/one", "/v1/jobs/two", "/nowhere"):
            with suppress(HTTPError), urlopen(gateway.url + path, timeout=10) as reply:
                reply.read()
        api = BatchApi(lambda: gateway.url)
        assert api.end_of(api.begin(["no row"]))["status"] == "failed"
        refused = client.submit(prompt=PROMPT, sampling={"stop_token_ids": [10**6]})
        assert client.result(refused, timeout_s=30).finish_reason == "error"
        client.submit(prompt=PROMPT, model="unserved", priority=-1)

        wait_until(lambda: worker.log.count("job ended") == NUM_JOBS + 1, "the last job was logged")
        families = read_when(url, has_all, "the last job was counted")
        gateway_url = f"http://127.0.0.1:{gateway_port}/metrics"
        read_when(gateway_url, has_unserved, "the gateway tells what waits, too")
        of_gateway = read_when(gateway_url, rests, "the gateway has counted all that it began")
        own_families = {name: one for name, one in of_gateway.items() if "gateway" in name}
        yield Scrape(families | own_families, url, worker.log)


def test_it_counts_each_token_and_each_job_once_and_none_of_the_warm_up(scrape: Scrape) -> None:
    assert scrape.value("herd_generation_tokens_total", model_name="m") == NUM_JOBS * NUM_TOKENS
    assert scrape.value("herd_prompt_tokens_total") == scrape.value("herd_request_prompt_tokens_sum")
    assert scrape.value("herd_request_generation_tokens_sum") == NUM_JOBS * NUM_TOKENS
    assert scrape.value("herd_request_success_total", finished_reason="length") == NUM_JOBS
    assert scrape.value("herd_request_failure_total", code="invalid_job") == 1
    assert scrape.value("herd_request_refused_total") == 1
    assert scrape.value("herd_prefix_cache_hits_total") > 0


def test_each_latency_is_measured_once_a_job(scrape: Scrape) -> None:
    for name in ("time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert scrape.value(f"herd_{name}_seconds_count") == NUM_JOBS, name
    assert scrape.value("herd_e2e_request_latency_seconds_count") == NUM_JOBS + 1
    assert scrape.value("herd_inter_token_latency_seconds_count") == NUM_JOBS * (NUM_TOKENS - 1)
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    whole = sum(scrape.value(f"herd_{name}_seconds_sum") for name in parts)
    assert 0 < whole <= scrape.value("herd_e2e_request_latency_seconds_sum")


def test_a_step_is_measured_with_its_rows_and_tokens(scrape: Scrape) -> None:
    num_steps = scrape.value("herd_step_time_seconds_count")
    assert scrape.value("herd_batch_size_count") == scrape.value("herd_iteration_tokens_total_count")
    assert NUM_TOKENS <= num_steps == scrape.value("herd_batch_size_count")
    assert scrape.value("herd_iteration_tokens_total_sum") >= scrape.value("herd_batch_size_sum")


def test_it_tells_its_state_and_what_waits_for_a_model_that_nobody_serves(scrape: Scrape) -> None:
    assert scrape.value("herd_worker_state", state="ready") == 1
    assert scrape.value("herd_workers", model_name="m", state="ready") == 1
    assert scrape.value("herd_ledger_up") == 1
    assert scrape.value("herd_queue_jobs", model_name="unserved", lane="low", tenant="default") == 1
    assert scrape.value("herd_queue_jobs", model_name="m", lane="normal") == 0
    assert scrape.value("herd_queue_tokens", model_name="unserved") > 0
    assert scrape.value("herd_publisher_waiting_steps") == 0


def test_a_gateway_counts_its_answers_by_route_and_status(scrape: Scrape) -> None:
    name = "herd_gateway_answers_total"
    assert scrape.value(name, route="/health/live", status="200") == 1
    assert scrape.value(name, route="/v1/jobs/{id}", status="404") == 2
    assert scrape.value(name, route="", status="404") == 1
    assert scrape.value("herd_gateway_answers_under_way") == 0


def test_a_gateway_counts_the_batches_that_it_runs(scrape: Scrape) -> None:
    assert scrape.value("herd_gateway_batches_total", state="failed") == 1
    assert scrape.value("herd_gateway_batches_under_way") == 0
    assert scrape.value("herd_gateway_batch_rows_total", outcome="completed") == 0


def row(family: Metric) -> str:
    """A metric's line in the table of docs/metrics.md."""
    name = family.name + "_total" * (family.type == "counter")
    labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
    names = ", ".join(f"`{label}`" for label in sorted(labels)) or "–"
    return f"| `{name}` | {family.type} | {names} | {family.documentation} |"


def test_the_document_lists_every_metric_as_it_is(scrape: Scrape) -> None:
    own = [row(family) for name, family in scrape.families.items() if name.startswith("herd_")]
    listed = re.findall(r"^\| `herd_.*$", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert listed == own, "\n".join(own)


def test_no_prompt_is_in_it(scrape: Scrape) -> None:
    with urlopen(scrape.url, timeout=10) as reply:
        assert "village" not in reply.read().decode()
    assert "village" not in scrape.log


def test_each_line_of_a_job_says_which_and_whose_in_one_order(scrape: Scrape) -> None:
    lines = [line for line in scrape.lines() if "job_id" in line]
    assert {line["event"] for line in lines} >= {"job ended", "job refused"}
    for line in lines:
        assert list(line)[: len(HEAD) + len(JobLine._fields)] == [*HEAD, *JobLine._fields]
        known = JobLine(*(line[name] for name in JobLine._fields))
        assert known[1:] == (line["attempt"], "m@test", "m", "default", TRACES.get(line["job_id"]))


def test_the_last_line_of_a_job_has_its_times_and_its_speed(scrape: Scrape) -> None:
    ends = {line["job_id"]: line for line in scrape.lines("job ended")}
    for job_id in TRACES:
        end = ends[job_id]
        assert (end["attempt"], end["finish_reason"], end["code"]) == (1, "length", None)
        assert end["tokens"] == NUM_TOKENS
        assert 0 <= end["queue_s"] <= end["ttft_s"] <= end["total_s"]
        assert end["tokens_per_s"] == pytest.approx(NUM_TOKENS / (end["total_s"] - end["queue_s"]), rel=0.1)
    (refused,) = (line for line in ends.values() if line["finish_reason"] == "error")
    assert (refused["code"], refused["tokens_per_s"]) == ("invalid_job", None)


def test_one_line_says_what_worker_is_ready(scrape: Scrape) -> None:
    (ready,) = scrape.lines("worker ready")
    told = {name: ready[name] for name in ("worker", "model", "device", "dtype", "weights", "queue", "slots")}
    assert told == {
        "worker": "m@test",
        "model": "m",
        "device": "cpu",
        "dtype": "float32",
        "weights": "dense",
        "queue": "herd.m",
        "slots": 4,
    }
    assert ready["memory_bytes"] > 0
    assert scrape.log.index("model loaded") < scrape.log.index("worker ready")


def test_celery_says_what_it_says_in_the_same_form(scrape: Scrape) -> None:
    loggers = {line["logger"].partition(".")[0] for line in scrape.lines()}
    assert {"celery", "llama_herd"} <= loggers


# The dashboard and the alerts: each query asks for what is there.

ALERTS = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = json.loads((MONITORING / "grafana/dashboards/herd.json").read_text())["panels"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
QUERIES = [*SHOWN, *(alert["expr"] for alert in ALERTS), *SCALERS]

#: Labels that Prometheus gives, and those of its own series.
GIVEN = {"instance", "job"}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str, scrape: Scrape) -> None:
    samples = {**scrape.samples, "up": set[str]()}
    selected = re.findall(r"\b(up|(?:herd|process)_\w+)(?:\{([^}]*)\})?", query)
    assert selected
    for name, matchers in selected:
        assert name in samples, name
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers)) <= samples[name] | GIVEN, name
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
    of_query = set[str]().union(*(samples[name] for name, _ in selected), GIVEN)
    assert {label for labels in grouped for label in re.split(r",\s*", labels)} <= of_query


def test_the_page_on_operation_says_what_to_do_when_each_rings() -> None:
    listed = re.findall(r"^\| `(Herd\w+)` \|", (ROOT / "docs/operate.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(alert["alert"] for alert in ALERTS)


def test_each_metric_of_the_worker_is_shown_or_watched(scrape: Scrape) -> None:
    """But those that only tell what others mean, or how long a part of a shown time took."""
    untold = {
        "worker_info",
        "kv_cache_tokens",
        "queue_tokens",
        "queue_delayed_jobs",
        "publisher_waiting_steps",
    }
    untold |= {"request_prefill_time_seconds", "request_decode_time_seconds"}
    untold |= {"request_prompt_tokens", "request_generation_tokens"}
    asked = " ".join(QUERIES)
    own = {name.removeprefix("herd_") for name in scrape.families if name.startswith("herd_")}
    assert {name for name in own if f"herd_{name}" not in asked} == untold


@pytest.fixture(scope="module")
def prometheus(scrape: Scrape, prometheus_url: str) -> str:
    """A real Prometheus that has scraped both some times, by our configuration; its address."""
    names = ("herd_ledger_up", "herd_gateway_answers_total")
    wait_until(
        lambda: min(num_scrapes(prometheus_url, name) for name in names) >= 2, "Prometheus has scraped both"
    )
    return prometheus_url


def answer(url: str, path: str, **params: str) -> Any:
    """What Prometheus answers; None while it starts."""
    try:
        with urlopen(f"{url}{path}?{urlencode(params)}", timeout=10) as reply:
            return json.load(reply)["data"]
    except HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return None
        raise AssertionError(error.read().decode()) from None
    except URLError:
        return None


def num_scrapes(url: str, name: str) -> int:
    found = answer(url, "query", query=f"min (count_over_time({name}[1m]))")
    return int(found["result"][0]["value"][1]) if found and found["result"] else 0


needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus command")


@needs_prometheus
@pytest.mark.parametrize(
    "query", [*SHOWN, SCALERS[0].replace("tales", "unserved"), SCALERS[1].replace("tales", "m")]
)
def test_a_real_prometheus_has_something_to_show(query: str, prometheus: str) -> None:
    filled_in = query.replace("$model", ".*").replace("$__rate_interval", "1m")
    found = answer(prometheus, "query", query=filled_in.removesuffix(" > 0"))
    assert found["result"], filled_in


@needs_prometheus
def test_a_real_prometheus_rings_for_the_model_that_nobody_serves_and_for_nothing_else(
    prometheus: str,
) -> None:
    def ringing() -> list[tuple[str, str]]:
        alerts = answer(prometheus, "alerts")["alerts"]
        return [(one["labels"]["alertname"], one["labels"].get("model_name", "")) for one in alerts]

    wait_until(lambda: ringing() == [("HerdQueueNotServed", "unserved")], "that alert alone rings")
    (group,) = answer(prometheus, "rules")["groups"]
    assert [rule["name"] for rule in group["rules"]] == [alert["alert"] for alert in ALERTS]
    assert not any(rule.get("lastError") for rule in group["rules"])
