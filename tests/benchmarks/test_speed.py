"""The benchmark of speed: whoever takes part is timed in every cell, and who dies is a row that says so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import file_types
from benchmarks.conditions import Processor
from benchmarks.report import Report, Table, number
from benchmarks.shapes import random_config
from benchmarks.speed import __main__ as speed
from benchmarks.speed.cells import CELLS, long_cells
from benchmarks.speed.child import Prompts
from benchmarks.speed.contender import OURS, Contender
from benchmarks.speed.files import RandomFile
from benchmarks.speed.machine import INSTRUCTIONS, TORCH, Ceilings
from benchmarks.speed.tables import first_token, readme_table

pytestmark = pytest.mark.program

TINY = random_config(hidden_size=256, num_layers=1, num_heads=4, ffn_size=256, vocab_size=2_048)
CEILINGS = Ceilings(1e10, {TORCH: 1e11, "int8 dot by AVX2": 2e11})
LONG = [cell.name for cell in long_cells(700)]


def tables(contenders: Sequence[Contender], presets: Sequence[str], **changes: Any) -> list[Table]:
    files = [RandomFile("tiny", TINY, preset) for preset in presets]
    plan = speed.Plan(rounds=2, steps=2, threads=1, contexts=(700,), long_files=("tiny Q8_0",))
    bench = speed.Bench(replace(plan, **changes), CEILINGS, Console(stderr=True), contenders)
    return list(bench.measure(files))


def test_all_take_turns_and_a_death_is_a_row() -> None:
    twin = replace(OURS, name="twin", reads_any_file_alike=True)
    dying = Contender("none", "no_such_script")
    first, second, ceilings, weights, busy = tables((OURS, twin, dying), ("Q8_0", "BF16"))
    ours, theirs, dead, floor, best = (list[Any](row.values()) for row in first.rows)
    cells = [cell.name for cell in CELLS]
    assert first.head == ["tiny Q8_0", *cells, LONG[1], LONG[0], "first token s", "peak GB", "note"]
    assert [row["tiny BF16"] for row in second.rows[:2]] == [OURS.name, "none"]
    assert [len(speeds) for speeds in ours[1:8]] == [2] * 6 + [1]
    assert all(speed > 0 for speeds in (*ours[1:8], *theirs[1:8]) for speed in speeds)
    assert dead[1:-1] == ["-"] * 9
    assert dead[-1].startswith("exit 2: ")
    assert all(share > 0 for share in (*floor[1:8], *best[1:8]))
    assert [row["ceiling"] for row in ceilings.rows] == [
        "memory read, GB/s",
        f"{TORCH}, GOP/s",
        "int8 dot by AVX2, GOP/s",
    ]
    assert [row["file"] for row in weights.rows] == ["tiny Q8_0", "tiny BF16"]
    assert [row["ms a step"] for row in busy.rows] == [OURS.name, "twin", "none"]
    report = Report("speed", [first, second, ceilings, weights, busy], {})
    summary = readme_table(report).rows
    assert [row["tokens/s"] for row in summary] == ["tiny Q8_0", "× twin", "tiny BF16"]
    assert list(summary[0].values())[1:] == ours[1:6]
    assert list(summary[1].values())[1:] == best[1:6]
    assert first_token(report).startswith("The first token of tiny Q8_0")


def test_a_type_stands_beside_who_reads_it_and_the_floor() -> None:
    plan = file_types.Plan(rounds=2, steps=2, threads=1)
    twin, dying = replace(OURS, name="twin"), Contender("none", "no_such_script")
    file = RandomFile("tiny", TINY, "MXFP4")
    speeds, standing = file_types.tables(plan, [file], (OURS, twin, dying), CEILINGS)
    cells = [cell.name for cell in file_types.TIMED]
    row: dict[str, Any] = dict(speeds.rows[0])
    assert (row["file"], row["peers"]) == ("tiny MXFP4", "twin")
    assert all(len(row[cell]) == 2 and number(row[cell]) > 0 for cell in cells)
    assert standing.head == ["file", *(f"{sign} {cell}" for sign in "×%" for cell in cells)]
    assert all(number(share) > 0 for share in list(standing.rows[0].values())[1:])


@pytest.mark.slow
def test_every_preset_is_measured_in_a_quick_run() -> None:
    from benchmarks.speed.files import PRESETS

    *files, _ceilings = tables((OURS,), list(PRESETS), quick=True)
    assert [table.head[0] for table in files] == [f"tiny {preset}" for preset in PRESETS]
    assert all("-" not in row.values() for table in files for row in table.rows[:1])


def test_no_two_prompts_begin_alike_and_all_engines_get_the_same() -> None:
    prompts, again = Prompts(), Prompts()
    found = [prompts.next(64) for _ in range(100)]
    assert found == [again.next(64) for _ in range(100)]
    assert len({tuple(prompt[:4]) for prompt in found}) == 100


def test_the_processors_instructions_are_measured_one_by_one() -> None:
    found = Ceilings.measure(threads=1)
    here = {one.name for one in INSTRUCTIONS if one.is_here(Processor.here())}
    assert found.operations_per_s.keys() == {TORCH, *here}
    assert min(found.bytes_per_s, *found.operations_per_s.values()) > 1e8


def test_a_floor_of_blocks_goes_by_bytes_and_of_numbers_by_bfloat16(tmp_path: Path) -> None:
    blocks, numbers = (RandomFile("tiny", TINY, preset) for preset in ("Q4_0", "BF16"))
    assert CEILINGS.floors(blocks, blocks.write(tmp_path)).flop_per_s == 2e11
    assert CEILINGS.floors(numbers, numbers.write(tmp_path)).flop_per_s == 1e11
