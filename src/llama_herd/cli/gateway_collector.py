"""A gateway's own figures, as Prometheus wants them."""

from collections.abc import Iterable, Iterator, Mapping

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

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known to differ."""
        return ()

    def collect(self) -> Iterator[Metric]:
        answers, batches = self._answers, self._batches
        under_way: Values = {(): answers.num_under_way}
        ended: Values = {(route, str(status)): num for (route, status), num in answers.num_ended.items()}
        yield gauge("gateway_answers_under_way", "Answers that the gateway has begun.", (), under_way)
        yield counter("gateway_answers", "Answers that have ended.", ("route", "status"), ended)
        yield gauge(
            "gateway_batches_under_way", "Batches that this gateway runs.", (), {(): batches.num_under_way}
        )
        yield counter(
            "gateway_batches", "Batches that have ended here.", ("state",), _by_name(batches.num_ended)
        )
        yield counter(
            "gateway_batch_rows", "Rows that were run here.", ("outcome",), _by_name(batches.num_rows)
        )


def _by_name(nums: Mapping[str, int]) -> Values:
    return {(name,): num for name, num in nums.items()}
