"""A worker multiplies by native kernels where they are built, and says which, or why none."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_herd.model.files.open_model import open_model
from llama_herd.model.kernels.instruction_set import AVX2, INSTRUCTION_SETS
from llama_herd.model.kernels.native import load_kernels
from llama_herd.model.weights.linear import BlockSegment, DenseSegment, NativeSegment
from llama_herd.worker.loading.kernels import kernels_folder as folder_of, kernels_of, needs_of
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import invoke
from tests.model.native_library import find
from tests.tiny import WIDE, write_tiny_gguf

#: The types of blocks that a library multiplies.
TYPES = (
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
)
NAMES = ", ".join(TYPES)
#: What a library does; prompts attend in tiles, if there are such.
ALL = f"for {NAMES}, (bfloat16, )?attention, (attention of prompts, )?RoPE, norms and gates"


def file_of(type: str, folder: Path) -> Path:
    return write_tiny_gguf(folder / "tiny.gguf", type=type, **WIDE)


@pytest.fixture
def q4_file(tmp_path: Path) -> Path:
    return file_of("Q4_0", tmp_path)


@pytest.fixture(scope="module")
def native_folder(kernels_folder: Path) -> Path:
    kernels = load_kernels(kernels_folder)
    if not kernels.types:
        pytest.skip(kernels.note)
    return kernels_folder


@pytest.mark.drawn(1)
@pytest.mark.parametrize("weights", ["auto", "quantized"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("type", TYPES)
def test_blocks_stay_where_a_kernel_multiplies_them(
    tmp_path: Path, native_folder: Path, type: str, weights: str, dtype: str
) -> None:
    settings = WorkerSettings(
        model=file_of(type, tmp_path),
        kernels_dir=str(native_folder),
        weights=weights,
        dtype=dtype,
        threads=1,
        slots=2,
    )
    model = LoadedModel.load(settings, "cpu")
    assert model.llama.output is not None
    (segment,) = model.llama.output.segments
    assert isinstance(segment, NativeSegment)
    assert model.plan.keeps_blocks
    assert re.search(f"{ALL}$", model.plan.form.kernels.note)
    layers = [part for block in model.llama.blocks for part in (block.attention.qkv, block.mlp.gate_up)]
    assert all(isinstance(segment, NativeSegment) for part in layers for segment in part.segments)


@pytest.mark.parametrize("type", TYPES)
def test_a_plan_counts_whole_tiles(tmp_path: Path, native_folder: Path, type: str) -> None:
    settings = WorkerSettings(
        model=file_of(type, tmp_path), kernels_dir=str(native_folder), threads=1, slots=2
    )
    model = LoadedModel.load(settings, "cpu")
    assert model.llama.output is not None
    found = [model.llama.embedding, *model.llama.output.segments]
    norms = [model.llama.norm]
    for block in model.llama.blocks:
        norms += [block.attention_norm, block.mlp_norm]
        for linear in (block.attention.qkv, block.attention.output, block.mlp.gate_up, block.mlp.down):
            found += linear.segments
    taken = sum(segment.tiles.nbytes for segment in found if isinstance(segment, NativeSegment))
    assert taken
    assert model.plan.weight_bytes == taken + sum(norm.weight.nbytes for norm in norms)


@pytest.mark.parametrize(
    ("options", "kind", "note"),
    [
        ({"deterministic": True}, DenseSegment, "HERD_DETERMINISTIC=true takes the plain path"),
        ({"deterministic": True, "weights": "quantized"}, BlockSegment, "HERD_DETERMINISTIC=true"),
        ({"weights": "dense"}, DenseSegment, "HERD_WEIGHTS=dense leaves them nothing to multiply"),
        ({"kernels_dir": "/nowhere"}, DenseSegment, r"not built in /nowhere\. Fix: herd kernels build"),
    ],
)
def test_the_plain_path_is_taken_and_said(
    q4_file: Path, native_folder: Path, options: dict[str, Any], kind: type, note: str
) -> None:
    given: dict[str, Any] = {
        "kernels_dir": str(native_folder),
        "threads": 1,
        "slots": 2,
        "dtype": "float32",
    } | options
    model = LoadedModel.load(WorkerSettings(model=q4_file, **given), "cpu")
    assert isinstance(model.llama.embedding, kind)
    assert re.match(f"none: {note}", model.plan.form.kernels.note)


def test_a_gpu_has_those_of_triton(q4_file: Path) -> None:
    if find_spec("triton") is not None:
        pytest.skip("triton is installed")
    with open_model(q4_file) as file:
        found = kernels_of(WorkerSettings(), "cuda:0", file)
    assert found.note == "none: No module named 'triton'. Fix: pip install triton"


def test_a_gpu_can_do_without(q4_file: Path) -> None:
    with open_model(q4_file) as file:
        found = kernels_of(WorkerSettings(triton="off"), "cuda:0", file)
    assert found.note == "none: HERD_TRITON=off takes the plain path"


@pytest.mark.parametrize(("weights", "types"), [("auto", {"Q4_0"}), ("dense", set())])
def test_kernels_of_a_gpu_are_asked_for_what_the_model_has(
    q4_file: Path, weights: str, types: set[str]
) -> None:
    settings = WorkerSettings.read(dtype="bfloat16", weights=weights)
    with open_model(q4_file) as file:
        needs, config = needs_of(settings, "cuda:0", file), file.config
    assert {type.name for type, _ in needs.widths} == types
    widths = {config.hidden_size, config.ffn_size} if types else set()
    assert {columns for _, columns in needs.widths} == widths
    assert (needs.hidden_size, needs.ffn_size) == (config.hidden_size, config.ffn_size)
    assert (needs.dtype, needs.windows, needs.cap) == (torch.bfloat16, frozenset({0}), 0.0)
    assert (needs.num_heads, needs.num_kv_heads) == (config.num_heads, config.num_kv_heads)
    assert (needs.head_dim, needs.scale) == (config.head_dim, config.head_dim**-0.5)


def test_kernels_wait_for_the_helpers_of_chats(q4_file: Path) -> None:
    """A card is not touched before their processes are there."""
    with ServableModel.open(WorkerSettings(model=q4_file), "cuda:0") as servable:
        servable.check_chat()
        assert "kernels" not in vars(servable)


def test_the_folder_is_the_set_one_or_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERD_KERNELS_DIR", raising=False)
    assert folder_of(WorkerSettings(kernels_dir="/k")) == Path("/k")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert folder_of(WorkerSettings()) == Path("/c/llama-herd/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert folder_of(WorkerSettings()) == Path.home() / ".cache/llama-herd/kernels"


def test_a_command_builds_them(native_folder: Path) -> None:
    names = [set.name for set in INSTRUCTION_SETS]
    best = next(set.name for set in INSTRUCTION_SETS if not set.complaint)
    for options, expected in ((["--all"], names), ([], [best])):
        done = invoke("kernels", "build", *options, HERD_KERNELS_DIR=str(native_folder))
        assert done.exit_code == 0, done.output
        built = [Path(line) for line in done.output.splitlines()]
        assert [path.name.partition(".")[0] for path in built] == expected
        assert {path.parent.parent for path in built} == {native_folder}


def test_who_has_no_home_has_no_kernels(q4_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HERD_KERNELS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with open_model(q4_file) as file:
        for is_only_planned in (True, False):
            found = kernels_of(WorkerSettings(), "cpu", file, is_only_planned=is_only_planned)
            assert found.note.endswith("no home folder to keep kernels in. Fix: HERD_KERNELS_DIR")


@pytest.mark.program
def test_the_command_names_what_it_compiles_anew(native_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(native_folder, tmp_path / "kernels")
    damaged = find(folder, AVX2)
    assert damaged is not None
    damaged.write_bytes(b"")
    done = invoke("kernels", "build", "--all", HERD_KERNELS_DIR=str(folder))
    assert (done.exit_code, done.stderr) == (0, f"herd: removed, {damaged} is damaged\n")
    assert str(damaged) in done.stdout.splitlines()
    assert find(folder, AVX2) == damaged


def test_the_command_says_why_it_cannot() -> None:
    done = invoke("kernels", "build", HERD_KERNELS_DIR="/proc/1")  # where nobody makes a folder
    assert done.exit_code == 2
    assert "herd: native kernels cannot be kept in" in done.stderr


def test_inspect_says_which_are_taken(q4_file: Path, native_folder: Path, tmp_path: Path) -> None:
    for folder, note in (
        (native_folder, f"for {NAMES}, if a worker finds them right$"),
        (tmp_path, "none: not built in"),
    ):
        done = invoke("inspect", str(q4_file), HERD_KERNELS_DIR=str(folder), HERD_DTYPE="float32")
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("  kernels "))
        assert re.search(note, line)
