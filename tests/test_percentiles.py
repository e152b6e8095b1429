"""How long most cases took."""

from llama_herd.percentiles import Percentiles


def test_percentiles_are_the_nearest_ranks() -> None:
    assert Percentiles.of([float(number) for number in range(1, 101)]) == Percentiles(50.0, 95.0)
    assert Percentiles.of([]) == Percentiles(None, None)
