"""Scripts of many arguments give each a name at the top: a number in the middle says nothing."""

import re
from pathlib import Path

import pytest

import llama_herd.tasks.ledger

SCRIPTS = sorted((Path(llama_herd.tasks.ledger.__file__).parent / "lua").glob("*.lua"))

#: Most arguments that a script may read by number where it needs them.
FEW = 5

READ = re.compile(r"ARGV\[(\d+)\]")


def body(script: Path) -> list[str]:
    """The code of a script below what its first lines bind to names."""
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("--")]
    while lines and lines[0].startswith(("local ", "  ")) and not lines[0].startswith("local function"):
        lines = lines[1:]
    return lines


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_many_arguments_have_names(script: Path) -> None:
    code = [line for line in script.read_text().splitlines() if not line.startswith("--")]
    numbers = [int(number) for line in code for number in READ.findall(line)]
    if max(numbers, default=0) > FEW:
        assert not [line for line in body(script) if READ.search(line)]


def test_the_law_sees_scripts_of_many_arguments() -> None:
    assert any(script.stem == "sweep" and len(body(script)) > 100 for script in SCRIPTS)
