"""A draw of combinations misses no pair of values."""

from itertools import combinations, product

from tests.drawing import draw

MANY = {one: dict(zip("abcd", one, strict=True)) for one in product(range(8), range(5), range(3), range(2))}


def test_each_value_comes_in_as_few_as_the_longest_parameter_has() -> None:
    drawn = draw(MANY, 1)
    assert [sorted({values[at] for values in drawn}) for at in range(4)] == [
        [*range(num)] for num in (8, 5, 3, 2)
    ]
    assert len(drawn) == 8


def test_any_two_values_of_two_parameters_meet_in_few_of_many_combinations() -> None:
    drawn = draw(MANY)
    for one, other in combinations(range(4), 2):
        pairs = {(values[one], values[other]) for values in MANY}
        assert {(values[one], values[other]) for values in drawn} == pairs
    assert len(drawn) == len(set(drawn)) < len(MANY) / 4
