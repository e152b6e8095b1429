"""A worker's own figures, as Prometheus wants them. It only reads values that are frozen."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llama_herd.error_code import ErrorCode
from llama_herd.ops.families import Values, counter, gauge, histogram
from llama_herd.tasks.protocol.events import GOOD_ENDS
from llama_herd.tasks.protocol.worker_status import WorkerState
from llama_herd.worker.engine.figures import StepFigures
from llama_herd.worker.grammars.figures import GrammarFigures
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.figures import JobFigures, WorkerFigures

#: How jobs end that were not done, beside the error codes.
ENDED_EARLY = ("cancelled", "deadline")

#: A family whose only label is the model: how it is made, its name and help, and its one value.
Row = tuple[Callable[..., Metric], str, str, Any]


@dataclass(eq=False)
class LoadingCollector(Collector):
    """Says that a worker loads its model, or waits for its server: nothing else is to tell of it yet."""

    model_name: str
    health: WorkerHealth

    def collect(self) -> Iterator[Metric]:
        yield _state(self.model_name, self.health.phase)


@dataclass(eq=False)
class WorkerCollector(Collector):
    """Asks for the figures at each scrape."""

    figures: Callable[[], WorkerFigures]
    facts: dict[str, str]  # never change: the labels of one sample, beside the model

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known to differ, and a worker that starts has no figures yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        figures = self.figures()
        status = figures.status
        facts = {"model_name": status.model, "worker": status.name, "device": status.device, **self.facts}
        info = {tuple(facts.values()): 1}
        yield gauge("worker_info", "Always 1; the labels say what the worker is.", tuple(facts), info)
        yield _state(status.model, status.state)
        yield from _of_model(figures, _engine(figures))
        yield from _of_model(figures, _steps(figures.engine.steps))
        yield from _of_model(figures, _grammars(figures.grammars))
        yield from _of_model(figures, _jobs(figures.jobs))
        codes = (*ENDED_EARLY, *(code.value for code in ErrorCode))
        yield _ends("request_success", "Jobs that were done.", "finished_reason", figures, GOOD_ENDS)
        yield _ends("request_failure", "Jobs that were not done.", "code", figures, codes)
        yield from _of_model(figures, _life(figures))


def _state(model_name: str, state: str) -> Metric:
    values: Values = {(model_name, one): one == state for one in get_args(WorkerState)}
    what = "1 for the state that the worker is in, 0 for the others."
    return gauge("worker_state", what, ("model_name", "state"), values)


def _of_model(figures: WorkerFigures, rows: Iterable[Row]) -> Iterator[Metric]:
    for make, name, help_text, value in rows:
        yield make(name, help_text, ("model_name",), {(figures.status.model,): value})


def _engine(figures: WorkerFigures) -> Iterator[Row]:
    status, stats = figures.status, figures.engine
    yield gauge, "num_requests_running", "Sequences in the batch.", stats.num_running
    yield gauge, "num_requests_waiting", "Sequences that wait here for room.", status.waiting
    preemptions = "Rows that have lost their place to a sequence of a higher priority."
    yield counter, "preemptions", preemptions, stats.num_preemptions
    recomputed = "Tokens that these rows have computed again."
    yield counter, "recomputed_tokens", recomputed, stats.num_recomputed_tokens
    yield gauge, "num_slots", "Most sequences that the batch may have.", status.slots
    yield gauge, "kv_cache_usage_perc", "Share of the KV cache that is in use, 0 to 1.", stats.kv_cache_usage
    yield gauge, "kv_cache_tokens", "Tokens that the KV cache has room for.", status.kv_cache_tokens
    looked_for, found = stats.num_prefix_queries, stats.num_prefix_tokens
    yield counter, "prefix_cache_queries", "Prompt tokens looked for in the prefix cache.", looked_for
    yield counter, "prefix_cache_hits", "Prompt tokens found in the prefix cache.", found


def _steps(steps: StepFigures) -> Iterator[Row]:
    prompts = "Prompt tokens of admitted jobs, found in the prefix cache or not."
    yield counter, "prompt_tokens", prompts, steps.num_prompt_tokens
    yield counter, "generation_tokens", "Tokens drawn.", steps.num_drawn_tokens
    yield counter, "constrained_tokens", "Tokens drawn by the masks of a form.", steps.num_masked_tokens
    yield histogram, "step_time_seconds", "Time of a forward pass with its draws.", steps.step_s
    yield histogram, "batch_size", "Sequences in a forward pass.", steps.num_rows
    yield histogram, "iteration_tokens_total", "Tokens that a forward pass computed.", steps.num_tokens
    gaps = "Time between two tokens of a sequence."
    yield histogram, "inter_token_latency_seconds", gaps, steps.gap_s


def _grammars(grammars: GrammarFigures) -> Iterator[Row]:
    yield counter, "grammar_requests", "Jobs that asked for a form.", grammars.num_asked
    yield counter, "grammar_refused", "Forms that were refused.", grammars.num_refused
    yield histogram, "grammar_build_seconds", "Time to judge and build a form that was new.", grammars.build_s


def _jobs(jobs: JobFigures) -> Iterator[Row]:
    since = "Time from submission to"
    yield histogram, "time_to_first_token_seconds", f"{since} the first token.", jobs.first_token_s
    yield histogram, "request_queue_time_seconds", f"{since} admission to the batch.", jobs.queue_s
    prefill, decode = "Time from admission to the first token.", "Time from the first token to the end."
    yield histogram, "request_prefill_time_seconds", prefill, jobs.prefill_s
    yield histogram, "request_decode_time_seconds", decode, jobs.decode_s
    yield histogram, "e2e_request_latency_seconds", f"{since} the end.", jobs.total_s
    yield histogram, "request_prompt_tokens", "Prompt tokens of a job that ended.", jobs.num_prompt_tokens
    yield histogram, "request_generation_tokens", "Tokens drawn for a job that ended.", jobs.num_drawn_tokens


def _life(figures: WorkerFigures) -> Iterator[Row]:
    jobs = figures.jobs
    yield counter, "request_refused", "Jobs that were ended before they reached the batch.", jobs.num_refused
    yield counter, "takeovers", "Jobs that were continued after an earlier attempt.", jobs.num_taken_over
    retries = "Jobs that were put back after an error, to be tried again."
    yield counter, "retries", retries, jobs.num_retries
    put_back = figures.num_put_back
    yield counter, "jobs_put_back", "Jobs whose message this worker has pushed again.", put_back
    unread = "Messages in lists that links of jobs went into and from which nobody has taken one for 30 s."
    yield gauge, "unread_links", unread, figures.num_unread_links
    later = "Celery tasks held until their ETA, if these take the places of jobs; else 0."
    yield gauge, "later_tasks", later, figures.num_later_tasks
    fenced = "Events that were refused, since another worker has the job."
    yield counter, "fenced_writes", fenced, jobs.num_fenced
    repeated = "Calls repeated, since Redis did not answer or was full."
    yield counter, "publish_retries", repeated, jobs.num_repeats
    calls = "Time from hand-over of a step's events until Redis has them."
    yield histogram, "publish_seconds", calls, jobs.call_s
    yield gauge, "publisher_lag_seconds", "Age of the oldest events not in Redis.", figures.lag_s
    waiting = figures.num_waiting_steps
    yield gauge, "publisher_waiting_steps", "Steps whose events are not in Redis.", waiting


def _ends(name: str, help_text: str, label: str, figures: WorkerFigures, reasons: Iterable[str]) -> Metric:
    values: Values = {(figures.status.model, reason): figures.jobs.ends.get(reason, 0) for reason in reasons}
    return counter(name, help_text, ("model_name", label), values)
