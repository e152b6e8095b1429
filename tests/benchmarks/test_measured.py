"""The page of measurements: sections are replaced and nothing else."""

import pytest

from benchmarks.measured import PAGE, RESULTS, Table, with_section


def test_a_table_has_words_to_the_left_and_three_digits_of_numbers_to_the_right() -> None:
    lines = str(Table(["what", "ms"], [["a", 1234.5], ["b", 0.012345]])).splitlines()
    assert lines == ["| what | ms |", "| --- | ---: |", "| a | 1,234 |", "| b | 0.0123 |"]


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- a -->\nold\n<!-- /a -->\nbetween\n<!-- b -->\nkept\n<!-- /b -->\n"
    assert with_section(page, "a", "new") == page.replace("old", "new")


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- a -->"):
        with_section("<!-- a -->", "a", "new")


def test_every_section_of_the_page_stands_on_a_report() -> None:
    lines = PAGE.read_text().splitlines()
    names = {
        line[len("<!-- ") : -len(" -->")] for line in lines if line.startswith("<!-- ") and "/" not in line
    }
    assert names
    for name in names:
        assert (RESULTS / f"{name}.json").exists(), name
        assert f"`python -m benchmarks.{name} --write`" in PAGE.read_text()
