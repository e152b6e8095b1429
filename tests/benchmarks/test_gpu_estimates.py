"""The estimates against a table that was computed apart from them, and what more instructions do to them."""

import pytest

from benchmarks.gpu_estimates import CARDS, TYPES, Estimates, Unpacking, Unpackings, workloads

H200 = CARDS[1]


def unpackings(instructions_a_weight: float) -> Unpackings:
    """Kernels of which all take as much for a weight."""
    return {
        (type, tokens): Unpacking(instructions_a_weight, tile_rows=32, num_warps=2, programs=4)
        for type in TYPES
        for tokens in (16, 32, 64)
    }


@pytest.mark.parametrize(
    ("type", "num_rows", "milliseconds"),
    [
        ("bf16", 1, 3.87),
        ("bf16", 8, 4.37),
        ("bf16", 32, 6.07),
        ("bf16", 64, 8.35),
        ("bf16", 128, 12.89),
        ("Q8_0", 1, 2.30),
        ("Q8_0", 32, 4.51),
        ("Q4_0", 1, 1.48),
        ("Q4_0", 8, 1.97),
        ("Q4_0", 32, 3.68),
    ],
)
def test_a_step_that_unpacks_in_no_time_is_bound_by_its_bytes(
    type: str, num_rows: int, milliseconds: float
) -> None:
    found = 1_000 * Estimates(H200, type, unpackings(0)).step_s(num_rows, 512)
    assert found == pytest.approx(milliseconds, abs=0.0101)


def test_few_warps_unpack_as_slowly_as_they_issue() -> None:
    """32 rows x 4,096 columns x 8 / 32 instructions: half an instruction of each of two warps in a clock."""
    made = unpackings(8)["Q4_0", 16]
    alone_s = 32 * 4_096 * 8 / 32 / 1.755e9
    assert made.busy_s(1, 4_096) == pytest.approx(alone_s)
    assert made.busy_s(2, 4_096) == pytest.approx(alone_s), "beside the first one"
    assert made.busy_s(4, 4_096) == pytest.approx(alone_s * 4 / 2.4), "no more than a processor issues"
    assert made.busy_s(5, 4_096) == pytest.approx(alone_s * (4 / 2.4 + 1)), "after the others"


def test_more_instructions_make_blocks_slower_and_nothing_else() -> None:
    few, many = (list(workloads(unpackings(count))) for count in (6, 12))
    assert [one.name.partition(":")[0] for one in few] == ["W1", "W1q", *(f"W{n}" for n in range(2, 9))]
    for before, after in zip(few, many, strict=True):
        for number, type in enumerate(before.types):
            slower = [
                new[number] > old[number] for old, new in zip(before.by_card, after.by_card, strict=True)
            ]
            is_unpacked = type != "bf16" and before.name.startswith(("W1q", "W2"))
            assert slower == [is_unpacked, is_unpacked], (before.name, type)
