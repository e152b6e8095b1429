"""A GGUF file's special tokens are those of llama.cpp, whatever it leaves out, or a warning says not."""

import json
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from llama_herd.model.files.gguf_model import GGUFModel
from tests.drawing import draw
from tests.model.text.made_gguf import Json, draw_gguf, write_gguf
from tests.node import bring_packages, needs_node

FOLDER = Path(__file__).parents[1] / "llama_cpp"
LIBRARIES = FOLDER / "node_modules" / "@node-llama-cpp" / "linux-x64" / "bins" / "linux-x64"
TEXTS = ("the herd", "a llama in  the queue", "tokens and\n<start_of_turn>a<end_of_turn> </s>", "")

#: Keys whose complaints are of what a text becomes.
CHANGE_IDS = ("scores", "token_type", "bos_token_id", "eos_token_id", "add_bos_token")

pytestmark = [
    needs_node,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="no llama.cpp for this machine"
    ),
]


def choices(num: int) -> list[Json]:
    rng = random.Random(0)
    return [draw_gguf(rng) for _ in range(num)]


@pytest.mark.long
def test_special_tokens_are_those_of_llama_cpp(tmp_path: Path) -> None:
    drawn = choices(300)
    few = [drawn[n] for n in draw(dict(enumerate(drawn)), 1)]
    assert wrong_files(few, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_special_tokens_are_those_of_llama_cpp_in_all_ways(tmp_path: Path) -> None:
    assert wrong_files(choices(2_000), tmp_path) == []


def wrong_files(choices: list[Json], folder: Path) -> list[str]:
    """What differs, with the choice that made it."""
    bring_packages(FOLDER)
    paths = [write_gguf(folder / f"{number}.gguf", choice) for number, choice in enumerate(choices)]
    wrong = []
    for path, choice, truth in zip(paths, choices, truths(paths), strict=True):
        is_spaced = (choice["kind"], choice["turns"]) == ("llama", TokenType.USER_DEFINED)
        differences = list(differing(path, truth, is_spaced=is_spaced))
        if differences:
            wrong.append(f"{path.name}: {differences} of {choice}")
    return wrong


def truths(paths: list[Path]) -> list[Any]:
    """What llama.cpp makes of each file; None: it refuses it, or ends its process."""
    found: list[Any] = []
    while len(found) < len(paths):
        asked = "".join(json.dumps([str(path), TEXTS]) + "\n" for path in paths[len(found) :])
        command = [sys.executable, str(FOLDER / "read_files.py"), str(LIBRARIES)]
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, errors="replace", check=False
        )
        found += map(json.loads, done.stdout.splitlines())
        if done.returncode:
            assert done.returncode < 0, done.stderr[-2_000:]  # by a signal: an assertion of its own
            found.append(None)
    return found


def differing(path: Path, truth: Any, *, is_spaced: bool) -> Iterator[str]:
    """What of a file is not as in llama.cpp, and of which no complaint tells."""
    with GGUFModel.open(path) as model:
        ours = model.read_tokenizer()
        model.read_control_tokens(ours)
    if truth is None:
        return  # what llama.cpp refuses need not be refused
    told = " ".join(ours.complaints)
    ends = sorted(ours.eos_ids)
    if ends != truth["ends"] and "eos_token_id" not in told and "which ends nothing" not in told:
        yield f"ends {ends}, not {truth['ends']}"
    if not any(name in told for name in CHANGE_IDS):
        for text, ids in zip(TEXTS, truth["ids"], strict=True):
            if is_spaced and "<start" in text:
                continue  # it puts a space after a user-defined token, which sentencepiece does not
            if ours.encode(text) != ids:
                yield f"ids of {text!r} {ours.encode(text)}, not {ids}"
    for token_id, (piece, hex_of_theirs) in enumerate(zip(ours.pieces, truth["pieces"], strict=True)):
        theirs = bytes.fromhex(hex_of_theirs)
        if piece != theirs and "token_type" not in told and token_id not in ours.eos_ids | {ours.bos_id}:
            yield f"text of {token_id} {piece!r}, not {theirs!r}"
