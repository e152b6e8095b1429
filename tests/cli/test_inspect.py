"""`herd inspect` shows any file by its headers, and then says why a worker would refuse it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from llama_herd.cli.inspect import summary_lines
from llama_herd.model.shape.rope_scaling import RopeScaling
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.settings import BUNDLED_MODEL_NAME
from llama_herd.worker.loading.model_summary import ModelSummary
from tests.cli.herd_command import environment, invoke
from tests.hostile.foreign_models import FOREIGN_MODELS, NUM_TOKENS
from tests.model.modules_folder import LAST, NORMALIZE, write_modules
from tests.model.text.templates import TEMPLATES
from tests.model.tiny_folder import write_tiny_folder
from tests.tiny import tiny_config, write_tiny_gguf

F32, F16, SMALL = ("F32", 1, 32, 128), ("F16", 1, 8, 16), ("F32", 1, 8, 32)


GGUF = "a GGUF file, version 3, little-endian"
GIVEN_UP = "Q4_0_4_4, which GGUF no longer has"
PARTS_TYPES = [("Q8_0", 4, 44_736, 47_532), ("F32", 1, 64, 256)]


class Shown(NamedTuple):
    """What is told of a model: its tensors by type, a line, and why it is refused."""

    tensors: list[tuple[str, int, int, int]]
    line: str
    complaint: str
    kind: str = GGUF
    num_tokens: int | None = NUM_TOKENS


SHOWN = {
    "big-endian": Shown(
        [F32], "general.architecture llama", "gguf-convert-endian", GGUF.replace("little", "big")
    ),
    "unknown architecture": Shown([F32, F16], "general.architecture mamba", "is 'mamba', supported are"),
    "experts": Shown([("F32", 1, 64, 256)], "llama.expert_count 2", "Take a dense model of the same"),
    "vocabulary": Shown([], "tokenizer.ggml.tokens 315 values", "holds no tensors: it is only a vocabulary"),
    "unknown type": Shown([("99", 1, 32, 128), SMALL], "BOS 1", "of type 99, .* such as its Q8_0"),
    "old type": Shown([("Q4_0_4_4", 1, 32, 128), SMALL], "EOS 2", GIVEN_UP),
    "one part": Shown(PARTS_TYPES, "split.count 3", "Fetch it as well: hf download", num_tokens=None),
    "cut off": Shown([F32], "llama.block_count 1", "needs 8 bytes, 2 are left"),
    "safetensors alone": Shown([F32], "F32 1 tensor", "a part of a model", "a safetensors file", None),
    "unknown family": Shown(
        [("F8_E4M3", 1, 32, 32)],
        "model_type bert",
        "'bert': its tokens see those after them",
        "a folder with 1 safetensors file",
        3,
    ),
    "ggjt": Shown([], "0 parameters", "Take the GGUF file of", "a GGJT file, older than GGUF", None),
}


@pytest.mark.parametrize("name", FOREIGN_MODELS)
def test_what_is_not_supported_is_shown_and_then_refused(name: str, tmp_path: Path) -> None:
    expected, path = SHOWN[name], FOREIGN_MODELS[name](tmp_path)
    done = invoke("inspect", str(path))
    assert done.exit_code == 2
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:2] == [str(path), expected.kind]
    assert any(line.startswith(expected.line) for line in lines)
    (complaint,) = done.stderr.splitlines()
    as_json = invoke("inspect", str(path), "--json")
    assert (as_json.exit_code, as_json.stderr) == (2, done.stderr)
    found = json.loads(as_json.stdout)
    assert complaint == f"herd: {found['complaint']}"
    assert [tuple(share.values()) for share in found["tensors"]] == expected.tensors
    assert (found["shape"], found["memory"], found["kind"]) == (None, None, expected.kind)
    tokens = found["tokenizer"]
    assert (tokens and tokens["vocab_size"]) == expected.num_tokens
    assert tokens is None or tokens["eos_ids"] == [2]
    assert re.search(expected.complaint, complaint)


#: Runs `herd inspect` of each argument, then of each `herd tokenize`.
LOOK = """
import contextlib, sys
from llama_herd.cli import main
for path in sys.argv[1:]:
    for command in (["inspect", path], ["tokenize", "--model", path, "the herd"]):
        sys.argv[1:] = command
        with contextlib.suppress(SystemExit):
            main()
print("torch" in sys.modules, "numpy" in sys.modules)
"""


@pytest.mark.program
def test_who_looks_at_a_file_waits_for_no_torch(tmp_path: Path) -> None:
    good = write_tiny_gguf(tmp_path / "good.gguf")
    write_tiny_gguf(tmp_path / "slowed.gguf", rope_factors=True)
    for name, num_bytes in (("header", 200), ("data", 9000)):
        (tmp_path / f"{name}.gguf").write_bytes(good.read_bytes()[:num_bytes])
    paths = [write_tiny_folder(tmp_path / "folder", good), *tmp_path.glob("*.gguf")]
    for name, write in FOREIGN_MODELS.items():
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name))
    command = [sys.executable, "-c", LOOK, *map(str, paths)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    *_, imported = done.stdout.splitlines()
    assert imported == "False True"


def test_of_a_file_that_is_not_there_only_the_complaint_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (("none.gguf", "no such file"), ("pipe", "not a regular file")):
        done = invoke("inspect", str(tmp_path / name), "--json")
        found = json.loads(done.stdout)
        assert (done.exit_code, found["kind"], found["header"]) == (2, "", {})
        assert problem in found["complaint"]


@pytest.mark.long
def test_the_bundled_model_is_found_by_its_name_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = invoke("inspect", BUNDLED_MODEL_NAME)
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, str(BUNDLED_MODEL))
    write_tiny_gguf(tmp_path / BUNDLED_MODEL_NAME)
    assert invoke("inspect", BUNDLED_MODEL_NAME).stdout.splitlines()[0] == BUNDLED_MODEL_NAME
    (tmp_path / BUNDLED_MODEL_NAME).unlink()
    (tmp_path / BUNDLED_MODEL_NAME).symlink_to("lost")
    assert "tales: no such file" in invoke("inspect", BUNDLED_MODEL_NAME).stderr


def test_settings_that_do_not_suit_a_model_hide_nothing_of_it(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    done = invoke("inspect", str(path), "--json", HERD_CONTEXT_TOKENS="513")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["shape"]["num_layers"], found["memory"]) == (2, 2, None)
    assert "HERD_CONTEXT_TOKENS=513" in found["complaint"]


def test_a_header_cannot_break_out_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"a\nb\x1b[2J": "c\nd", "x": float("nan")}))
    done = invoke("inspect", str(tmp_path))
    assert "  a b[2J  c d" in done.stdout.splitlines()
    assert json.loads(invoke("inspect", str(tmp_path), "--json").stdout)["header"]["x"] == "nan"


def test_a_shape_is_told_by_what_is_not_as_in_llama_2() -> None:
    special = {"windows": (0, 4096), "rope_scaling": RopeScaling((1.0, 8.0), 1.2), "logit_cap": 30.0}
    summary = ModelSummary("m", "k", {}, tiny_config(**special), (), None, None, "")
    lines = [" ".join(line.split()) for line in summary_lines(summary)]
    assert lines[lines.index("rope_dim 16") + 1 :] == [
        "rope_scaling pairs up to 8 times slower, gain 1.2",
        "windows of 4,096 tokens in 1 of 2 layers",
        "logit_cap 30.0",
    ]


@pytest.mark.long
def test_how_outputs_are_written_is_told_with_what_says_so(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", chat_template=TEMPLATES["qwen_2_5"])
    lines = [" ".join(line.split()) for line in invoke("inspect", str(path)).stdout.splitlines()]
    assert "calls of tools hermes, by chat template default" in lines
    assert "reasoning none" in lines
    done = invoke("inspect", str(path), "--json", HERD_TOOL_PARSER="none", HERD_REASONING_PARSER="think")
    found = json.loads(done.stdout)
    assert found["tool_format"] == {"name": "none", "source": "HERD_TOOL_PARSER"}
    assert found["reasoning_format"] == {"name": "think", "source": "HERD_REASONING_PARSER"}


def test_a_format_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = invoke("inspect", str(write_tiny_gguf(tmp_path / "m.gguf")), HERD_TOOL_PARSER="hermes_2")
    assert done.exit_code == 2
    assert "HERD_TOOL_PARSER" in done.stderr
    assert "auto, none, mistral_v11, " in done.stderr
    assert "'hermes_2'" in done.stderr


def test_an_embedder_is_shown_whole(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, write_tiny_gguf(tmp_path / "m.gguf"))
    prompts = {"prompts": {"query": "Find: "}, "default_prompt_name": "query"}
    write_modules(folder, LAST, NORMALIZE, prompts=prompts)
    done = invoke("inspect", str(folder))
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "what it does embeds texts: last token, normalised" in lines
    assert "prompt query (by default) 'Find: '" in lines
    assert "family Llama" in lines
    found = json.loads(invoke("inspect", str(folder), "--json").stdout)
    assert found["purpose"] == {
        "kind": "embeds",
        "sentence": "embeds texts: last token, normalised",
        "width": found["shape"]["hidden_size"],
        "prompts": {"query": "Find: "},
        "default_prompt": "query",
        "warnings": [],
    }
    assert found["memory"] is not None


def test_a_purpose_that_a_setting_gives_comes_with_a_warning(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    own = json.loads(invoke("inspect", str(path), "--json").stdout)["purpose"]
    assert (own["kind"], own["warnings"]) == ("generates", [])
    done = invoke("inspect", str(path), "--json", HERD_POOLING="rank")
    assert done.exit_code == 0
    (warning,) = json.loads(done.stdout)["purpose"]["warnings"]
    assert warning.startswith(f"{path}: by its files it generates text, but HERD_POOLING=rank, so it ranks")
