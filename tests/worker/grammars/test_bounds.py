"""The law of numbers: what is taken next to a bound is valid, and a bound that can be held is taken."""

import json
import random
from typing import Any

import pytest

from llama_herd.worker.grammars.judge import judge_form
from tests.examples import seeds
from tests.worker.grammars.taking import takes
from tests.worker.grammars.verdicts import problem
from tests.worker.grammars.walks import around
from tests.worker.grammars.wild_schemas import wild_number


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(3, 100))
def test_what_is_taken_next_to_a_bound_is_valid(seed: int) -> None:
    rng = random.Random(f"next {seed}")
    assert not [one for _ in range(40) for one in escapes(wild_number(rng))]


@pytest.mark.parametrize(
    "schema",
    [
        {"maximum": 2**63 - 1021},
        {"type": "number", "minimum": 2**63 - 1024, "maximum": 2**63 - 1024},
        {"type": "number", "exclusiveMinimum": 1e17, "maximum": 1.00000000000001e17},
        {"type": ["number", "null"], "minimum": -1.00000000000001e17, "maximum": -1e17},
        {"type": "integer", "minimum": 2.0**63 - 1024, "maximum": 2**63 - 1024},
        {"type": "integer", "minimum": 9.99999999999999e17, "maximum": 1e18},
        {"const": 123456789012345e5},
        {"enum": [-123456789012345e5, ""]},
    ],
)
def test_a_double_may_be_less_or_more_than_its_fewest_digits(schema: dict[str, Any]) -> None:
    """Validators read a bound or a constant as either, and hold whole numbers of an output to it exactly."""
    assert not escapes(schema)


def escapes(schema: dict[str, Any]) -> list[str]:
    """What is wrong with numbers next to a schema's own that its form lets through."""
    answer = judge_form("json", json.dumps(schema))
    if answer.kind != "text":
        return []
    given = [one for value in schema.values() for one in (value if isinstance(value, list) else [value])]
    numbers = [one for one in given if not isinstance(one, str)]
    taken = [text for one in numbers for text in around(one) if takes(answer.text, text)]
    return [f"{found} by {json.dumps(schema)}" for text in taken if (found := problem(schema, text))]


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"minimum": 2**53, "maximum": 2**53 + 3}, [f"{2**53}", f"{2**53 + 1}", f"{2**53 + 2}"]),
        ({"type": "integer", "maximum": 2**63 - 1}, [f"{2**63 - 1024}", f"-{2**70}"]),
        ({"type": "number", "maximum": 10**17}, [f"{10**17}", "99999999999999999.5"]),
        ({"type": "number", "minimum": 0.1, "maximum": 0.3}, ["0.1", "0.3", "0.100000000000000000001"]),
        ({"maximum": 10**400}, ["1", "9" * 400]),
        ({"type": "integer", "minimum": 10**17}, [f"{10**17}", f"{2 * 10**17}", f"{2**63 - 1024}"]),
        ({"type": "integer", "maximum": -(10**17)}, [f"-{10**17}", f"-{2 * 10**17}", f"-{2**63 - 1024}"]),
        ({"type": "integer", "maximum": 2**70}, ["-1", "1", f"{2**63 - 1024}"]),
        ({"type": "integer", "minimum": -(2**70)}, ["-1", "1", f"-{2**63 - 1024}"]),
        ({"multipleOf": 0.5, "minimum": 1}, ["1", "1.5", "99999999999999.5"]),
        ({"multipleOf": 0.5, "maximum": -1}, ["-1", "-1.5", "-99999999999999.5"]),
    ],
)
def test_a_bound_that_can_be_held_is_taken(schema: dict[str, Any], texts: list[str]) -> None:
    answer = judge_form("json", json.dumps(schema))
    assert [one for one in texts if takes(answer.text, one)] == texts
    assert not [one for one in texts if problem(schema, one)]


@pytest.mark.parametrize("divisor", [1_000_001, 4_294_967_295, 1000.001])
def test_a_divisor_of_too_many_remainders_is_refused_before_any_is_built(divisor: float) -> None:
    """Each is a state of the grammar: 4,294,967,295 would take hours where no processor time is limited."""
    schema = {"properties": {"p": {"multipleOf": divisor, "minimum": 0, "maximum": 3_000_003}}}
    answer = judge_form("json", json.dumps(schema))
    fix = "its digits may come to 1,000,000 at most. Fix: a smaller one, or leave it out"
    assert answer == ("failed", f"properties.p.multipleOf is not supported: {fix}")


@pytest.mark.parametrize(
    ("divisors", "is_taken"),
    [
        ((65_535, 65_537), True),
        ((65_535, 65_537, 65_535, 65_537), True),
        ((65_536, 65_537), False),
        ((65_535, 65_537, 2), False),
        ((0.5, 1.5, 0.5), True),
    ],
)
def test_as_many_divisors_are_taken_as_may_meet(divisors: tuple[float, ...], is_taken: bool) -> None:
    properties = {f"p{number}": {"multipleOf": divisor} for number, divisor in enumerate(divisors)}
    answer = judge_form("json", json.dumps({"properties": properties}))
    assert (answer.kind == "text") == is_taken, answer
