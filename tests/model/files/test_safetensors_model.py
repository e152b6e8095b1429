"""A Hugging Face folder gives the Llama that a GGUF file of the same weights gives, however it is stored."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llama_herd.errors import ModelFileError
from llama_herd.model.files.safetensors_model import HEAD_NAME, SafetensorsModel, hf_name
from llama_herd.model.kernels.dequantize import dequantize
from llama_herd.model.llama2 import Llama
from tests.model.forwards import greedy, logits_after, random_ids
from tests.model.open_files import open_files
from tests.tiny import load_tiny, oracle, random_weights, tiny_config, write_tiny_gguf

pytestmark = pytest.mark.long

INDEX = "model.safetensors.index.json"
WEIGHT_NAMES = list(random_weights(tiny_config(), seed=0, tied=False))


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def saved(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, as transformers saves them."""
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    oracle(gguf_file).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the folder that a test may change."""
    return shutil.copytree(saved, tmp_path / "tiny")


@pytest.fixture
def sharded(gguf_file: Path, tmp_path: Path) -> Path:
    oracle(gguf_file).save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    return tmp_path / "sharded"


def load(folder: Path) -> Llama:
    with SafetensorsModel.open(folder) as model:
        return Llama.load(model)


def change_config(folder: Path, **changes: object) -> None:
    """Change keys of a config.json; None leaves a key out."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


# The same Llama


def test_logits_are_bit_equal_to_those_of_a_gguf_file(gguf_file: Path, saved: Path) -> None:
    ids = random_ids(150)
    llama = load(saved)
    assert llama.config == tiny_config()
    assert logits_after(llama, ids).equal(logits_after(load_tiny(gguf_file), ids))


def test_ids_are_equal_to_those_of_a_gguf_file(gguf_file: Path, saved: Path) -> None:
    prompts = [random_ids(2 * seed + 1, seed) for seed in range(10)]
    assert greedy(load(saved), prompts, 40) == greedy(load_tiny(gguf_file), prompts, 40)


def test_shards_give_the_same_model_as_one_file(saved: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("model-*.safetensors"))) > 3
    ids = random_ids(100)
    assert logits_after(load(sharded), ids).equal(logits_after(load(saved), ids))
    with SafetensorsModel.open(sharded) as parts, SafetensorsModel.open(saved) as whole:
        assert parts.num_bytes == whole.num_bytes


@pytest.mark.parametrize("says_so", [True, None])
def test_a_tied_model_uses_its_embedding_twice(tmp_path: Path, says_so: bool | None) -> None:
    gguf_file = write_tiny_gguf(tmp_path / "tied.gguf", tied=True)
    oracle(gguf_file).save_pretrained(tmp_path / "tied")
    change_config(tmp_path / "tied", tie_word_embeddings=says_so)
    ids = random_ids(100)
    assert logits_after(load(tmp_path / "tied"), ids).equal(logits_after(load_tiny(gguf_file), ids))
    with SafetensorsModel.open(tmp_path / "tied") as model:
        assert "output.weight" not in model
        assert torch.equal(model.weight("output.weight").blocks, model.weight("token_embd.weight").blocks)


def test_a_head_of_its_own_counts_whatever_the_flag_says_and_a_copy_takes_no_memory(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    with SafetensorsModel.open(folder) as model:
        assert "output.weight" in model
    change_weights(
        folder, lambda tensors: tensors.update({HEAD_NAME: tensors["model.embed_tokens.weight"].clone()})
    )
    with SafetensorsModel.open(folder) as model:
        assert "output.weight" not in model
    change_config(folder, tie_word_embeddings=False)
    with SafetensorsModel.open(folder) as model:
        assert "output.weight" in model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_values_are_those_that_transformers_saved(
    gguf_file: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    source = oracle(gguf_file).to(dtype)
    source.save_pretrained(tmp_path / "m")
    expected = {name: tensor.float() for name, tensor in source.state_dict().items()}
    with SafetensorsModel.open(tmp_path / "m") as model:
        for name in WEIGHT_NAMES:
            weight = model.weight(name)
            assert torch.equal(
                dequantize(weight.blocks, weight.type).view(weight.shape), expected[hf_name(name)]
            )
        assert model.num_bytes == sum(value.numel() for value in expected.values()) * dtype.itemsize


def test_old_rope_frequencies_are_ignored(folder: Path, saved: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    ids = random_ids(40)
    assert logits_after(load(folder), ids).equal(logits_after(load(saved), ids))


def test_a_model_outlives_its_folder(folder: Path, saved: Path) -> None:
    llama = load(folder)
    shutil.rmtree(folder)
    ids = random_ids(40)
    assert logits_after(llama, ids).equal(logits_after(load(saved), ids))


# What is refused


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00005\.safetensors: missing, .* names 5 files"):
        SafetensorsModel.open(sharded)


def test_of_a_tensor_in_two_shards_the_later_one_counts_as_in_transformers(sharded: Path) -> None:
    from transformers import AutoModelForCausalLM

    index = json.loads((sharded / INDEX).read_text())
    name, other = next(iter(index["weight_map"])), "z-overlay.safetensors"
    stored = load_file(sharded / index["weight_map"][name])[name]
    save_file({name: torch.full_like(stored, 0.5)}, sharded / other, metadata={"format": "pt"})
    index["weight_map"][name] = other
    (sharded / INDEX).write_text(json.dumps(index))
    oracle_head = AutoModelForCausalLM.from_pretrained(sharded).state_dict()[name]
    with SafetensorsModel.open(sharded) as model:
        (ours,) = (weight for weight in WEIGHT_NAMES if hf_name(weight) == name)
        assert model.weight(ours).blocks.view(torch.float32).flatten().equal(oracle_head.flatten())
        assert set(oracle_head.flatten().tolist()) == {0.5}


def test_a_tied_folder_may_store_the_head_alone(folder: Path, saved: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    change_weights(folder, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    with SafetensorsModel.open(folder) as model, SafetensorsModel.open(saved) as whole:
        for name in ("token_embd.weight", "output.weight"):
            assert model.weight(name).blocks.equal(whole.weight("output.weight").blocks)


BAD_INDEXES: dict[str, tuple[Any, str]] = {
    "no map": ({}, "weight_map is missing"),
    "a list": ([], "holds a list, an object is needed"),
    "no files": ({"weight_map": {}}, "weight_map names 0 files, allowed are 1 to 1024"),
    "many files": (
        {"weight_map": {str(n): f"{n}.safetensors" for n in range(1_025)}},
        "weight_map names 1025 files",
    ),
    "another folder": (
        {"weight_map": {"w": "../m.safetensors"}},
        r"weight_map names '\.\./m\.safetensors', which is no",
    ),
    "a pickle": (
        {"weight_map": {"w": "model.bin"}},
        r"weight_map names 'model\.bin', which is no safetensors file",
    ),
    "an object": ({"weight_map": {"w": {}}}, r"weight_map names '\{\}', which is no"),
    "a number": ({"weight_map": {"w": 7}}, "weight_map names '7', which is no"),
}


@pytest.mark.parametrize(("index", "message"), BAD_INDEXES.values(), ids=BAD_INDEXES.keys())
def test_a_broken_index_is_named(folder: Path, index: object, message: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=rf"index\.json: {message}"):
        SafetensorsModel.open(folder)


def test_pickles_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin is a pickle, which can run code"):
        SafetensorsModel.open(folder)


def test_a_folder_without_weights_says_which_files_it_needs(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ModelFileError, match=r"holds neither model\.safetensors nor model\.safetensors\.index"
    ):
        SafetensorsModel.open(folder)


UP = "model.layers.0.mlp.up_proj.weight"
BAD_SETS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "missing": (lambda tensors: tensors.pop(UP), rf"tensor {UP} is missing"),
    "another name": (
        lambda tensors: tensors.update({f"base_model.model.{UP}": tensors.pop(UP)}),
        rf"tensor 'base_model\.model\.{UP}' is no part of a Llama",
    ),
    "no head": (lambda tensors: tensors.pop("lm_head.weight"), r"tensor lm_head\.weight is missing"),
    "extra": (
        lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(1)}),
        r"tensor 'model\.layers\.2\.mlp\.up_proj\.weight' is no part of a Llama",
    ),
    "bias": (
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}),
        r"tensor 'model\.layers\.0\.self_attn\.q_proj\.bias' is no part of a Llama",
    ),
    "shape": (
        lambda tensors: tensors.update({UP: tensors[UP].T.contiguous()}),
        rf"tensor '{UP}' has shape \(64, 128\), expected \(128, 64\)",
    ),
    "dtype": (
        lambda tensors: tensors.update({UP: tensors[UP].to(torch.int8)}),
        rf"tensor '{UP}': dtype is 'I8', supported are F32, F16, BF16",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_SETS.values(), ids=BAD_SETS.keys())
def test_another_set_of_tensors_is_refused_by_name(
    folder: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    change_weights(folder, change)
    with pytest.raises(ModelFileError, match=message):
        SafetensorsModel.open(folder)


def test_a_quantised_folder_is_told_what_can_be_read(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ModelFileError, match=r"quantization_config is .* not quantised, or a GGUF .* Q8_0"):
        SafetensorsModel.open(folder)


def test_a_refused_folder_leaves_no_file_open(folder: Path) -> None:
    change_config(folder, num_hidden_layers=3)
    refusals = []  # with their frames, as a caller keeps them
    for _ in range(2):
        with pytest.raises(ModelFileError) as caught:
            SafetensorsModel.open(folder)
        refusals.append(caught)
    assert folder / "model.safetensors" not in open_files()


BAD_CONFIGS = {
    "not JSON": ("{", "not JSON"),
    "nested too deep": ("[" * 100_000, "nested more than 32 deep, which is the limit"),
    "a list": ("[]", "holds a list, an object is needed"),
    "too long": (" " * (2**20 + 1), "longer than the limit of 1048576 bytes"),
    "another model": ('{"model_type": "mamba"}', "model_type is 'mamba', supported are llama"),
}


@pytest.mark.parametrize(("content", "message"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_broken_config_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match=rf"config\.json: {message}"):
        SafetensorsModel.open(folder)
