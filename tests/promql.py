"""PromQL over the samples of one moment: the little of it that scalers ask for. Whatever else is refused."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import add, eq, ge, gt, le, lt, mul, ne, sub

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

NAME = "__name__"

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]

AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {"+": add, "-": sub, "*": mul}
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": eq,
    "!=": ne,
    ">": gt,
    ">=": ge,
    "<": lt,
    "<=": le,
}
MATCHES: dict[str, Callable[[str, str], bool]] = {
    "MatchOp.Equal": lambda wanted, value: wanted == value,
    "MatchOp.NotEqual": lambda wanted, value: wanted != value,
    "MatchOp.Re": lambda wanted, value: re.fullmatch(wanted, value) is not None,
    "MatchOp.NotRe": lambda wanted, value: re.fullmatch(wanted, value) is None,
}


def samples(exposition: str, **target: str) -> Vector:
    """What Prometheus has after it has scraped this text; `target` are the labels that it adds."""
    families = text_string_to_metric_families(exposition)
    return {
        frozenset({NAME: one.name, **one.labels, **target}.items()): one.value
        for family in families
        for one in family.samples
    }


def evaluate(query: str, series: Vector) -> Vector:
    """The answer to a query, by labels. Raises NotImplementedError for what this does not know."""
    return _vector(promql.parse(query), series)


def _vector(expression: promql.Expr, series: Vector) -> Vector:
    match expression:
        case promql.ParenExpr():
            return _vector(expression.expr, series)
        case promql.VectorSelector() if expression.offset is None and expression.at is None:
            return _selected(expression, series)
        case promql.AggregateExpr() if expression.param is None:
            return _aggregated(expression, series)
        case promql.BinaryExpr():
            return _joined(expression, series)
    raise NotImplementedError(f"{type(expression).__name__}: {expression}")


def _selected(selector: promql.VectorSelector, series: Vector) -> Vector:
    name = {} if selector.name is None else {NAME: selector.name}

    def is_meant(labels: dict[str, str]) -> bool:
        return name.items() <= labels.items() and all(
            MATCHES[str(one.op)](one.value, labels.get(one.name, "")) for one in selector.matchers.matchers
        )

    return {labels: value for labels, value in series.items() if is_meant(dict(labels))}


def _aggregated(expression: promql.AggregateExpr, series: Vector) -> Vector:
    modifier = expression.modifier
    if modifier is not None and modifier.type != promql.AggModifierType.By:
        raise NotImplementedError(str(expression))
    by = set(modifier.labels) if modifier else set()
    groups = defaultdict[Labels, list[float]](list)
    for labels, value in _vector(expression.expr, series).items():
        groups[_only(labels, by)].append(value)
    return {labels: AGGREGATES[str(expression.op)](values) for labels, values in groups.items()}


def _joined(expression: promql.BinaryExpr, series: Vector) -> Vector:
    kind, modifier = str(expression.op).split()[0], expression.modifier
    left = _vector(expression.lhs, series)
    if isinstance(expression.rhs, promql.NumberLiteral) and kind in COMPARISONS and modifier is None:
        bound = expression.rhs.val
        return {labels: value for labels, value in left.items() if COMPARISONS[kind](value, bound)}
    right = _vector(expression.rhs, series)
    matching = modifier.matching if modifier else None
    if matching is not None and matching.type != promql.LabelModifierType.Include:
        raise NotImplementedError(str(expression))

    def key(labels: Labels) -> Labels:
        return _only(labels, set(matching.labels)) if matching else _without_name(labels)

    others = {key(labels): value for labels, value in right.items()}
    if kind == "unless":
        return {labels: value for labels, value in left.items() if key(labels) not in others}
    if kind == "or":
        mine = set(map(key, left))
        return left | {labels: value for labels, value in right.items() if key(labels) not in mine}
    if kind not in ARITHMETIC or len(others) < len(right):
        raise NotImplementedError(str(expression))
    pairs = ((key(labels), value) for labels, value in left.items())
    return {labels: ARITHMETIC[kind](value, others[labels]) for labels, value in pairs if labels in others}


def _only(labels: Labels, names: Iterable[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def _without_name(labels: Labels) -> Labels:
    return frozenset((name, value) for name, value in labels if name != NAME)
