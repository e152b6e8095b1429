"""The queries that say how many workers of a model are wanted: of KEDA's object, and of docs/operate.md."""

import re
from collections.abc import Iterable
from math import ceil
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.promql import Vector, evaluate

ROOT = Path(__file__).parents[2]

_SCALED = yaml.safe_load((ROOT / "deploy/kubernetes/worker/scaledobject.yaml").read_text("utf-8"))
_PAGE = (ROOT / "docs/operate.md").read_text("utf-8")

#: What the page says, of the model `tales`.
SCALERS = tuple(re.findall(r"^    (sum.*herd_.*)$", _PAGE, re.MULTILINE))


class Trigger(NamedTuple):
    """One of KEDA's triggers. takes_nothing: whether no answer counts as 0."""

    query: str
    threshold: float
    takes_nothing: bool

    def wanted(self, series: Vector) -> int:
        """So many workers, as the autoscaler reckons with an average value."""
        found = evaluate(self.query, series)
        if not found and self.takes_nothing:
            return 0
        (value,) = found.values()
        return ceil(value / self.threshold)


TRIGGERS = tuple(
    Trigger(of["query"], float(of["threshold"]), of.get("ignoreNullValues", "true") == "true")
    for of in (trigger["metadata"] for trigger in _SCALED["spec"]["triggers"])
)


def wanted(series: Vector, model: str, triggers: Iterable[Trigger] = TRIGGERS) -> int:
    """The workers of a model that KEDA wants after a scrape; 0: it takes the last one away."""
    of_model = (trigger._replace(query=trigger.query.replace("tales", model)) for trigger in triggers)
    return max(trigger.wanted(series) for trigger in of_model)
