"""A real worker runs jobs, and is scraped over HTTP."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from llama_herd.tasks.client.client import Client
from llama_herd.worker.local.redis_server import EmbeddedRedis
from llama_herd.worker.settings import WorkerSettings
from tests.worker.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker]

ROOT = Path(__file__).parents[3]
PROMPT = "once upon a time in a village far away " * 6
NUM_JOBS, NUM_TOKENS = 6, 8


class Scrape(NamedTuple):
    """What a worker says of itself after some jobs. The jobs of `unserved` wait for ever."""

    families: dict[str, Metric]
    url: str

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


def has_all(families: dict[str, Metric]) -> bool:
    jobs, failures = families["herd_queue_jobs"], families["herd_request_failure"]
    models = {sample.labels["model_name"] for sample in jobs.samples}
    return "unserved" in models and any(sample.value for sample in failures.samples)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def scrape(
    server: EmbeddedRedis, endless_settings: WorkerSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scrape]:
    port, log = free_port(), tmp_path_factory.mktemp("log") / "log"
    own: dict[str, Any] = {"model_name": "m", "metrics_port": port, "metrics_host": "127.0.0.1"}
    url = f"http://127.0.0.1:{port}/metrics"
    with (
        WorkerProcess(server.url, endless_settings.model, "m", log, **own),
        Client(server.url, model="m") as client,
    ):
        sampling = {"max_tokens": NUM_TOKENS}
        for _ in range(2):  # those of the second round find their prompt in the cache
            job_ids = [client.submit(prompt=PROMPT, sampling=sampling) for _ in range(NUM_JOBS // 2)]
            for job_id in job_ids:
                assert client.result(job_id, timeout_s=30).finish_reason == "length"
        refused = client.submit(prompt=PROMPT, sampling={"stop_token_ids": [10**6]})
        assert client.result(refused, timeout_s=30).finish_reason == "error"
        client.submit(prompt=PROMPT, model="unserved", priority=-1)

        wait_until(lambda: has_all(read(url)), "the last job was counted")
        yield Scrape(read(url), url)


def test_it_counts_each_token_and_each_job_once(scrape: Scrape) -> None:
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


def test_the_warm_up_does_not_count(scrape: Scrape) -> None:
    assert scrape.value("herd_batch_size_sum") < 2 * NUM_JOBS * NUM_TOKENS


def test_it_tells_its_state_and_what_waits_for_a_model_that_nobody_serves(scrape: Scrape) -> None:
    assert scrape.value("herd_worker_state", state="ready") == 1
    assert scrape.value("herd_workers", model_name="m", state="ready") == 1
    assert scrape.value("herd_ledger_up") == 1
    assert scrape.value("herd_queue_jobs", model_name="unserved", lane="low", tenant="default") == 1
    assert scrape.value("herd_queue_jobs", model_name="m", lane="normal") == 0
    assert scrape.value("herd_queue_tokens", model_name="unserved") > 0
    assert scrape.value("herd_publisher_waiting_steps") == 0


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
