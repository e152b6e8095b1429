"""CONTRIBUTING.md says which places know of a sampler, an error and so on; no other file does."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "llama_herd"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()

#: How the product names each example of the table, where that is not its plain name.
SPELLINGS = {
    "phi3": '"phi3"',
    "detokenize": r"\bdetokenize_ids\b",
    "tokenize": r"(?m)\bcli\.tokenize\b|^def tokenize\b",
    "grammar_dead_end": r"\bGRAMMAR_DEAD_END\b",
}
KINDS_OF_FILES = (".py", ".lua", ".cpp", ".h", ".mjs", ".html")
#: What other APIs ask and answer, which have names of their own for some of ours.
OTHERS = {PACKAGE / "tasks" / "openai", PACKAGE / "worker" / "foreign"}


class Kind(NamedTuple):
    """What is added, the places that it takes, and an example that took them."""

    name: str
    places: frozenset[Path]
    example: str


def kinds() -> list[Kind]:
    rows = re.findall(r"^\| (an? .+?) \| (.+) \| `(\w+)` \|$", PAGE, re.M)
    return [
        Kind(name, frozenset(map(path_of, re.findall(r"`([\w/.]+\.\w+)`", said))), example)
        for name, said, example in rows
    ]


def path_of(name: str) -> Path:
    if name == "rules.py":  # beside the place before it
        return PACKAGE / "worker" / "engine" / "sampling" / name
    return PACKAGE / name if (PACKAGE / name).exists() else ROOT / name


def test_the_list_has_all_kinds_of_changes() -> None:
    names = {kind.name for kind in kinds()}
    wanted = {"a sampler", "a family of models", "a field of a job", "a field of an event", "a setting"}
    assert names == wanted | {"a route", "a command", "an error", "a code of failed jobs"}


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_no_other_file_of_the_product_knows_of_the_example(kind: Kind) -> None:
    spelling = re.compile(SPELLINGS.get(kind.example, rf"\b{kind.example}\b"))
    files = [path for path in PACKAGE.rglob("*") if path.suffix in KINDS_OF_FILES]
    knowing = {path for path in files if not OTHERS & {*path.parents} and spelling.search(path.read_text())}
    listed = {path for path in kind.places if PACKAGE in path.parents}
    assert knowing == listed - {path_of("rules.py")}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_the_other_places_know_of_it_too(kind: Kind) -> None:
    others = [path for path in kind.places if PACKAGE not in path.parents]
    assert [path for path in others if kind.example.lower() not in path.read_text().lower()] == []


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_few_places_of_the_product_are_visited(kind: Kind) -> None:
    listed = {path for path in kind.places if PACKAGE in path.parents} - {path_of("rules.py")}
    assert len(listed) <= 3
