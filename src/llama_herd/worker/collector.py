"""A worker's own figures, as Prometheus wants them. It only reads values that are frozen."""

from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llama_herd.error_code import ErrorCode
from llama_herd.ops.families import Values, counter, gauge, histogram
from llama_herd.ops.histogram import Histogram
from llama_herd.tasks.protocol.worker_status import WorkerState
from llama_herd.worker.engine.interface import EngineStats
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.jobs.figures import SUCCESSES, JobFigures, WorkerFigures

#: How jobs end that were not done, beside the error codes.
ENDED_EARLY = ("cancelled", "deadline")


class WorkerCollector(Collector):
    """Asks for the figures at each scrape."""

    def __init__(self, figures: Callable[[], WorkerFigures], facts: dict[str, str]) -> None:
        """`facts` never change: they are the labels of one sample, beside the model."""
        self._figures = figures
        self._facts = facts

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known to differ, and a worker that starts has no figures yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        of_model = _ModelMetrics(figures.status.model)
        yield gauge("worker_info", "Always 1; the labels say what the worker is.", *self._info(figures))
        yield gauge(
            "worker_state",
            "1 for the state that the worker is in, 0 for the others.",
            ("model_name", "state"),
            {(figures.status.model, state): figures.status.state == state for state in get_args(WorkerState)},
        )
        yield from of_model.engine(figures)
        yield from of_model.steps(figures.engine)
        yield from of_model.grammars(figures.grammars)
        yield from of_model.jobs(figures.jobs)
        yield from of_model.life(figures)

    def _info(self, figures: WorkerFigures) -> tuple[tuple[str, ...], dict[tuple[str, ...], float]]:
        status = figures.status
        facts = {"model_name": status.model, "worker": status.name, "device": status.device, **self._facts}
        return tuple(facts), {tuple(facts.values()): 1}


class _ModelMetrics:
    """Families whose only label, or first one, is the model."""

    def __init__(self, model: str) -> None:
        self._model = model

    def engine(self, figures: WorkerFigures) -> Iterator[Metric]:
        status, stats = figures.status, figures.engine
        yield self._gauge("num_requests_running", "Sequences in the batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait here for room.", status.waiting)
        yield self._gauge("num_slots", "Most sequences that the batch may have.", status.slots)
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV cache that is in use, 0 to 1.", stats.kv_cache_usage
        )
        yield self._gauge("kv_cache_tokens", "Tokens that the KV cache has room for.", status.kv_cache_tokens)
        yield self._counter(
            "prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", stats.num_prefix_queries
        )
        yield self._counter(
            "prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.num_prefix_tokens
        )

    def steps(self, stats: EngineStats) -> Iterator[Metric]:
        steps = stats.steps
        yield self._counter(
            "prompt_tokens",
            "Prompt tokens of admitted jobs, found in the prefix cache or not.",
            steps.num_prompt_tokens,
        )
        yield self._counter("generation_tokens", "Tokens drawn.", steps.num_drawn_tokens)
        yield self._counter(
            "constrained_tokens", "Tokens drawn by the masks of a form.", steps.num_masked_tokens
        )
        yield self._histogram("step_time_seconds", "Time of a forward pass with its draws.", steps.step_s)
        yield self._histogram("batch_size", "Sequences in a forward pass.", steps.num_rows)
        yield self._histogram(
            "iteration_tokens_total", "Tokens that a forward pass computed.", steps.num_tokens
        )
        yield self._histogram(
            "inter_token_latency_seconds", "Time between two tokens of a sequence.", steps.gap_s
        )

    def grammars(self, grammars: GrammarFigures) -> Iterator[Metric]:
        yield self._counter("grammar_requests", "Jobs that asked for a form.", grammars.num_asked)
        yield self._counter("grammar_refused", "Forms that were refused.", grammars.num_refused)
        yield self._histogram(
            "grammar_build_seconds", "Time to judge and build a form that was new.", grammars.build_s
        )

    def jobs(self, jobs: JobFigures) -> Iterator[Metric]:
        since = "Time from submission to"
        yield self._histogram("time_to_first_token_seconds", f"{since} the first token.", jobs.first_token_s)
        yield self._histogram("request_queue_time_seconds", f"{since} admission to the batch.", jobs.queue_s)
        yield self._histogram(
            "request_prefill_time_seconds", "Time from admission to the first token.", jobs.prefill_s
        )
        yield self._histogram(
            "request_decode_time_seconds", "Time from the first token to the end.", jobs.decode_s
        )
        yield self._histogram("e2e_request_latency_seconds", f"{since} the end.", jobs.total_s)
        yield self._histogram(
            "request_prompt_tokens", "Prompt tokens of a job that ended.", jobs.num_prompt_tokens
        )
        yield self._histogram(
            "request_generation_tokens", "Tokens drawn for a job that ended.", jobs.num_drawn_tokens
        )
        yield self._ends("request_success", "Jobs that were done.", "finished_reason", jobs, SUCCESSES)
        codes = (*ENDED_EARLY, *(code.value for code in ErrorCode))
        yield self._ends("request_failure", "Jobs that were not done.", "code", jobs, codes)
        yield self._counter(
            "request_refused", "Jobs that were ended before they reached the batch.", jobs.num_refused
        )

    def life(self, figures: WorkerFigures) -> Iterator[Metric]:
        jobs = figures.jobs
        yield self._counter(
            "takeovers", "Jobs that were continued after an earlier attempt.", jobs.num_taken_over
        )
        yield self._counter(
            "jobs_put_back",
            "Jobs whose message this worker has pushed again.",
            figures.num_put_back,
        )
        yield self._counter(
            "fenced_writes", "Events that were refused, since another worker has the job.", jobs.num_fenced
        )
        yield self._counter(
            "publish_retries", "Calls repeated, since Redis did not answer or was full.", jobs.num_retries
        )
        yield self._histogram(
            "publish_seconds", "Time from hand-over of a step's events until Redis has them.", jobs.call_s
        )
        yield self._gauge("publisher_lag_seconds", "Age of the oldest events not in Redis.", figures.lag_s)
        yield self._gauge(
            "publisher_waiting_steps", "Steps whose events are not in Redis.", figures.num_waiting_steps
        )

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        return gauge(name, help_text, ("model_name",), {(self._model,): value})

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        return counter(name, help_text, ("model_name",), {(self._model,): value})

    def _histogram(self, name: str, help_text: str, measured: Histogram) -> Metric:
        return histogram(name, help_text, ("model_name",), {(self._model,): measured})

    def _ends(
        self, name: str, help_text: str, label: str, jobs: JobFigures, reasons: Iterable[str]
    ) -> Metric:
        values: Values = {(self._model, reason): jobs.ends.get(reason, 0) for reason in reasons}
        return counter(name, help_text, ("model_name", label), values)
