"""A gateway's own figures, as Prometheus wants them."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from llama_herd.ops.families import Values, counter, gauge
from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.gateway.request_log import AnswerCount


class GatewayCollector(Collector):
    """Asks for the figures at each scrape."""

    def __init__(self, answers: AnswerCount, batches: BatchCount) -> None:
        self._answers = answers
        self._batches = batches

    def collect(self) -> Iterator[Metric]:
        answers, batches = self._answers, self._batches
        under_way: Values = {(): answers.num_under_way}
        ended: Values = {(route, str(status)): num for (route, status), num in answers.num_ended.items()}
        yield gauge("gateway_answers_under_way", "Answers that the gateway has begun.", (), under_way)
        yield counter("gateway_answers", "Answers that have ended.", ("route", "status"), ended)
        yield gauge(
            "gateway_batches_under_way", "Batches that this gateway runs.", (), {(): batches.num_under_way}
        )
        states: Values = {(state,): num for state, num in batches.num_ended.items()}
        outcomes: Values = {(outcome,): num for outcome, num in batches.num_rows.items()}
        yield counter("gateway_batches", "Batches that have ended here.", ("state",), states)
        yield counter("gateway_batch_rows", "Rows that were run here.", ("outcome",), outcomes)
