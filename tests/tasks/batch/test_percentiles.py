"""How long most cases took."""

from llama_herd.tasks.client.batch.batch_progress import Percentiles


def test_percentiles_are_the_nearest_ranks() -> None:
    assert Percentiles.from_seconds([float(number) for number in range(1, 101)]) == Percentiles(50.0, 95.0)
    assert Percentiles.from_seconds([]) == Percentiles(None, None)
