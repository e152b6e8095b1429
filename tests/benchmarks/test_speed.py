"""The benchmark of speed: whoever takes part is timed in every cell, and who dies is a row that says so."""

from dataclasses import replace

import pytest

from benchmarks.shapes import random_config
from benchmarks.speed.__main__ import measure
from benchmarks.speed.contender import OURS, Contender
from benchmarks.speed.files import RandomFile
from benchmarks.speed.rounds import CELLS
from benchmarks.speed.tables import readme_table, tables

pytestmark = pytest.mark.program

TINY = random_config(hidden_size=64, num_layers=1, num_heads=2, ffn_size=64, vocab_size=2_048)


def test_all_take_turns_and_a_death_is_a_row() -> None:
    twin = replace(OURS, name="twin", reads_any_file_alike=True)
    dying = Contender("none", "no_such_script")
    files = [RandomFile("tiny", TINY, "Q8_0"), RandomFile("tiny", TINY, "BF16")]
    report = measure(files, rounds=2, contenders=(OURS, twin, dying), threads=1)
    first, second = report["runs"]
    assert [one["contender"] for one in first["contenders"]] == [OURS.name, twin.name, "none"]
    assert [one["contender"] for one in second["contenders"]] == [OURS.name, "none"]
    for one in first["contenders"][:2]:
        assert one["death"] == ""
        assert [len(one["seconds"][cell.name]) for cell in CELLS] == [2] * len(CELLS)
    ours = first["contenders"][0]
    assert ours["start_s"] > 0
    assert ours["peak_bytes"] > 1e6
    assert first["contenders"][2]["death"].startswith("exit 2: ")
    ours, theirs, dead, _floor, best = next(iter(tables(report))).rows
    assert dead[1:-1] == ["-"] * (len(CELLS) + 1)
    assert best[1] == pytest.approx(float(ours[1]) / float(theirs[1]))
    summary = readme_table(report).rows
    assert [row[0] for row in summary] == ["tiny Q8_0", "× twin", "tiny BF16"]
    assert summary[0][1:] == ours[1:-2]
    assert summary[1][1:] == best[1:-2]
