"""What docs/testing.md shows holds: its script is read, its replies are answers."""

import re
import tomllib
from pathlib import Path

import pytest

from llama_herd.testing import Answer, Script, plugin

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_table_of_answers_is_a_script(tmp_path: Path) -> None:
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert len(tomllib.loads(table)["answers"]) == 3
    (tmp_path / "answers.toml").write_text(table)
    Script.load(tmp_path / "answers.toml")


@pytest.mark.parametrize("shown", re.findall(r"`(Answer(?:\.\w+)?\([^`]*\))`", PAGE))
def test_each_reply_is_an_answer(shown: str) -> None:
    assert isinstance(eval(shown, {"Answer": Answer}), Answer)


@pytest.mark.parametrize("name", ["herd", "herd_models", "herd_settings"])
def test_the_fixtures_are_there(name: str) -> None:
    assert f"`{name}`" in PAGE
    assert hasattr(plugin, name)
