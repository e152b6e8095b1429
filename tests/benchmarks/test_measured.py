"""The page of measurements and the README: sections are replaced and nothing else, and stand on reports."""

import json
import re
from collections.abc import Callable

import pytest

from benchmarks import queue_cost
from benchmarks.measured import PAGE, README, RESULTS, Report, Table, with_section
from benchmarks.speed import __main__ as speed

pytestmark = pytest.mark.long


def test_a_table_has_words_to_the_left_and_three_digits_of_numbers_to_the_right() -> None:
    lines = str(Table(["what", "ms"], [["a", 1234.5], ["b", 0.012345]])).splitlines()
    assert lines == ["| what | ms |", "| --- | ---: |", "| a | 1,234 |", "| b | 0.0123 |"]


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- a -->\nold\n<!-- /a -->\nbetween\n<!-- b -->\nkept\n<!-- /b -->\n"
    assert with_section(page, "a", "new") == page.replace("old", "new")


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- a -->"):
        with_section("<!-- a -->", "a", "new")


def test_every_table_of_the_page_stands_on_a_report() -> None:
    sections = re.findall(r"<!-- ([\w-]+) -->\n(.+?)<!-- /\1 -->", PAGE.read_text(), re.DOTALL)
    assert {name for name, _ in sections} >= {"speed", "queue_cost", "throughput", "takeover", "batch"}
    for name, text in sections:
        assert (RESULTS / f"{name}.json").exists(), name
        command = name.replace("-", " ", 1)
        assert re.search(rf"`python -m benchmarks\.{command}[^`]* --write`", text)


def test_every_report_is_on_the_page_by_its_tables_or_by_a_row() -> None:
    page = PAGE.read_text()
    shown = set(re.findall(r"<!-- ([\w-]+) -->", page))
    told = set(re.findall(r"^\| `([\w-]+)` \| .+ \| .+ commit [0-9a-f]+ \|$", page, re.M))
    assert not shown & told
    assert {path.stem for path in RESULTS.glob("*.json")} == shown | told


def test_the_page_can_be_read_through() -> None:
    assert len(PAGE.read_text().splitlines()) <= 350
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
    report = json.loads((RESULTS / f"{name}.json").read_text())
    page = README.read_text()
    assert with_section(page, name, for_readme(report)) == page
