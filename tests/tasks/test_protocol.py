"""What docs/protocol.md tells other languages is so."""

import json
import re
from pathlib import Path
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.protocol.message import TAG_GAP, Envelope

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def test_the_page_names_the_parts_of_the_scripts_that_producers_run() -> None:
    words = " ".join(PAGE.split())
    for script in kept_scripts("producers"):
        assert f"{script.files[-1].upper()} `{' '.join(script.files)}`" in words


def test_the_message_of_the_page_has_what_ours_has() -> None:
    (text,) = [
        block for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) if "delivery_tag" in block
    ]
    shown, ours = json.loads(text), json.loads(Envelope.for_job("<id>", "herd.tales").with_tag("unique"))
    assert places(ours) - places(shown) == {"headers.argsrepr", "headers.kwargsrepr", "headers.root_id"}
    assert places(shown) <= places(ours)
    assert shown["properties"] == ours["properties"]
    assert f"`{TAG_GAP}`" in PAGE


def places(message: dict[str, Any]) -> set[str]:
    fields = {name: value if isinstance(value, dict) else {"": 0} for name, value in message.items()}
    return {f"{name}.{field}" for name, inner in fields.items() for field in inner}


def test_the_page_lists_every_code_of_an_error() -> None:
    (_, section), *_ = [part.split("\n", 1) for part in PAGE.split("\n## ") if part.startswith("Error codes")]
    listed = re.findall(r"^\| `(\w+)` \| (.*) \| (yes|no) \|$", section, re.MULTILINE)
    assert listed == [(code, code.meaning, "yes" if code.retriable else "no") for code in ErrorCode]
