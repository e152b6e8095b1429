"""Values are counted where Prometheus looks for them: at the first bound that they do not exceed."""

from hypothesis import given, strategies as st

from llama_herd.ops.histogram import Histogram

EMPTY = Histogram.over(1.0, 2.0, 5.0)
VALUES = st.lists(st.tuples(st.floats(0, 10), st.integers(1, 4)))


def filled(values: list[tuple[float, int]]) -> Histogram:
    histogram = EMPTY
    for value, times in values:
        histogram = histogram.plus(value, times)
    return histogram


def test_a_value_counts_at_its_own_bound_and_one_above_all_bounds_at_the_end() -> None:
    assert filled([(1.0, 1), (1.5, 2), (5.0, 1), (7.0, 1)]).counts == (1, 2, 1, 1)


def test_a_value_leaves_the_histogram_that_it_was_added_to_as_it_was() -> None:
    assert EMPTY.plus(1.0) != EMPTY
    assert sum(EMPTY.counts) == 0


@given(VALUES, VALUES)
def test_a_sum_is_what_both_have_measured(one: list[tuple[float, int]], two: list[tuple[float, int]]) -> None:
    together, both = filled(one) + filled(two), filled(one + two)
    assert together.counts == both.counts
    assert abs(together.total - both.total) < 1e-6
