"""A draw of combinations misses no pair of values."""

from itertools import combinations, product

from tests.drawing import draw


def test_any_two_values_of_two_parameters_meet_in_few_of_many_combinations() -> None:
    many = {
        one: dict(zip("abcd", one, strict=True)) for one in product(range(8), range(5), range(3), range(2))
    }
    drawn = draw(many)
    for one, other in combinations(range(4), 2):
        pairs = {(values[one], values[other]) for values in many}
        assert {(values[one], values[other]) for values in drawn} == pairs
    assert len(drawn) == len(set(drawn)) < len(many) / 4
