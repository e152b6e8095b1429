"""Reports: one form for all, whose tables stand in the page and in the README as they were kept."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import queue_cost, report
from benchmarks.report import PAGE, README, RESULTS, Report, Table, across, section, shown, with_section
from benchmarks.speed import __main__ as speed

pytestmark = pytest.mark.long

KEPT = sorted(RESULTS.glob("*.json"))
CONDITIONS = {"cpu": "one", "cores": 2, "threads": 1, "torch": "2", "load_1_min": 0.5, "commit": "abc"}


def test_a_table_has_words_to_the_left_and_three_digits_of_numbers_to_the_right() -> None:
    lines = str(Table([{"what": "a", "ms": 1234.5}, {"what": "b", "ms": 0.012345}])).splitlines()
    assert lines == ["| what | ms |", "| --- | ---: |", "| a | 1,234 |", "| b | 0.0123 |"]


def test_of_rounds_the_median_is_shown_and_what_was_not_measured_is_a_dash() -> None:
    lines = str(Table([{"what": "a", "ms": [3.0, 9.0, 1.0]}, {"what": "b"}], "times")).splitlines()
    assert lines == ["times:", "", "| what | ms |", "| --- | ---: |", "| a | 3 |", "| b | - |"]


def test_columns_that_were_measured_one_by_one_become_rows() -> None:
    table = across("ms", {"one": {"a": 1, "b": 2}, "two": {"a": 3, "b": 4}})
    assert table.rows == [{"ms": "a", "one": 1, "two": 3}, {"ms": "b", "one": 2, "two": 4}]


def test_a_report_is_read_as_it_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    kept = Report("one", [Table([{"a": [1, 2]}], "times")], CONDITIONS, {"rounds": 2}, "part", "--rounds 2")
    kept.keep()
    assert Report.read(tmp_path / "one-part.json") == kept
    assert "`python -m benchmarks.one part --rounds 2 --write`: one, 2 cores" in str(kept)


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- a -->\nold\n<!-- /a -->\nbetween\n<!-- b -->\nkept\n<!-- /b -->\n"
    assert with_section(page, "a", "new") == page.replace("old", "new")
    assert (section(page, "a"), section(page, "c")) == ("old", None)


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- a -->"):
        with_section("<!-- a -->", "a", "new")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_whatever_was_kept_can_be_shown(path: Path) -> None:
    kept = Report.read(path)
    assert kept.name == path.stem
    assert str(kept).count("| ---") >= len(kept.tables) > 0
    json.dumps(kept.plan)


def test_every_table_of_the_page_stands_on_a_report() -> None:
    sections = re.findall(r"<!-- ([\w-]+) -->\n(.+?)<!-- /\1 -->", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in sections} >= {"speed", "queue_cost", "throughput", "takeover", "batch"}
    for name, text in sections:
        command = name.replace("-", " ", 1)
        assert re.search(rf"`python -m benchmarks\.{command}[^`]* --write`", text)
        assert text == f"{shown(name)}\n"


def test_every_report_is_on_the_page_by_its_tables_or_by_a_row() -> None:
    page = PAGE.read_text()
    marked = set(re.findall(r"<!-- ([\w-]+) -->", page))
    told = set(re.findall(r"^\| `([\w-]+)` \| .+ \| .+ commit [0-9a-f]+ \|$", page, re.M))
    assert not marked & told
    assert {Report.read(path).section for path in KEPT} == marked | told


def test_the_page_can_be_read_through() -> None:
    assert len(PAGE.read_text().splitlines()) <= 360
    assert len(README.read_text().splitlines()) <= 160


def test_the_page_begins_with_what_to_read_and_leaves_no_section_out() -> None:
    guide, *sections = PAGE.read_text().split("\n## ")
    anchors = {section.partition("\n")[0].lower().replace(" ", "-") for section in sections}
    assert set(re.findall(r"\(#([\w-]+)\)", guide)) == anchors


@pytest.mark.parametrize(
    ("name", "for_readme"),
    [
        ("speed", speed.for_readme),
        ("queue_cost", queue_cost.for_readme),
    ],
)
def test_the_readme_says_what_the_reports_say(name: str, for_readme: Callable[[Report], str]) -> None:
    assert section(README.read_text(), name) == shown(name, for_readme)


def test_reports_of_two_processors_stand_under_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for name, amx in (("amd-26-2", "without"), ("intel-6-143", "with")):
        made = {**CONDITIONS, "processor": f"{name}, {amx} AMX"}
        Report("speed", [Table([{"a": 1}])], made, machine=name).keep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "speed-amd-26-2.json",
        "speed-intel-6-143.json",
    ]
    both = shown("speed")
    assert both.startswith("**one, amd-26-2, without AMX**\n\n| a |")
    assert "**one, intel-6-143, with AMX**" in both
    assert both.count("`python -m benchmarks.speed --write`") == 2
