"""Families of samples: each has a name, a line of help, and a value for each set of labels."""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from llama_herd.ops.histogram import Histogram

#: What all names begin with. Most of the rest are vLLM's names.
PREFIX = "herd_"

#: A value for each set of label values.
Values = Mapping[tuple[str, ...], float]


def gauge(name: str, help_text: str, labels: Iterable[str], values: Values) -> Metric:
    """Values that rise and fall."""
    return _filled(GaugeMetricFamily(PREFIX + name, help_text, labels=list(labels)), values)


def counter(name: str, help_text: str, labels: Iterable[str], values: Values) -> Metric:
    """Values that only rise while the worker lives. Their samples' names end in _total."""
    return _filled(CounterMetricFamily(PREFIX + name, help_text, labels=list(labels)), values)


def histogram(
    name: str, help_text: str, labels: Iterable[str], values: Mapping[tuple[str, ...], Histogram]
) -> Metric:
    """How many measured values were at most each bound."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=list(labels))
    for label_values, measured in values.items():
        bounds = map(floatToGoString, (*measured.bounds, inf))
        buckets = list(zip(bounds, accumulate(measured.counts), strict=True))
        family.add_metric(label_values, buckets, measured.total)
    return family


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
