"""A model file holds exactly a Llama's weights; they come out in their blocks, Q and K un-permuted."""

import gc
import warnings
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as GGMLType, GGUFValueType

from benchmarks.stored_blocks import stored_blocks
from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf_model import GGUFModel, unpermute_rows
from llama_herd.model.kernels.block_types import SUPPORTED_TYPES
from llama_herd.model.llama2 import Llama
from tests import tiny
from tests.model import raw_gguf
from tests.model.open_files import open_files
from tests.tiny import WIDE, permute_rows, random_weights, tiny_config, write_tiny_gguf

CONFIG = tiny_config(num_layers=1, hidden_size=256, ffn_size=32)


@dataclass(frozen=True, eq=False)
class Change:
    """A tensor to put into a file, or with no rows to leave out."""

    name: str
    rows: np.ndarray | None = None
    type: GGMLType | None = None


def write_changed(path: Path, change: Change) -> Path:
    """A model of one layer, right but for the change."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_block_count(CONFIG.num_layers)
    writer.add_head_count(CONFIG.num_heads)
    writer.add_head_count_kv(CONFIG.num_kv_heads)
    writer.add_feed_forward_length(CONFIG.ffn_size)
    writer.add_context_length(CONFIG.context_length)
    writer.add_layer_norm_rms_eps(CONFIG.rms_eps)
    writer.add_vocab_size(CONFIG.vocab_size)
    for name, weight in random_weights(CONFIG, seed=0, tied=False).items():
        if name != change.name:
            writer.add_tensor(name, weight.numpy())
    if change.rows is not None:
        writer.add_tensor(change.name, change.rows, raw_dtype=change.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.long
@pytest.mark.parametrize("kind", [type.name for type in SUPPORTED_TYPES])
def test_blocks_come_back_byte_equal(tmp_path: Path, kind: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=kind, permute=False, **WIDE)
    written = random_weights(tiny_config(**WIDE), seed=0, tied=False)
    with GGUFModel.open(path) as model:
        for name, values in written.items():
            weight = model.weight(name)
            stored_type = GGMLType[kind] if values.ndim == 2 else GGMLType.F32
            expected = torch.from_numpy(stored_blocks(values.numpy(), stored_type)).view(weight.blocks.shape)
            num_heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2], 0)
            assert (weight.type, weight.shape) == (stored_type, tuple(values.shape))
            assert weight.blocks.equal(tiny.unpermute_rows(expected, num_heads))


def test_without_un_permuting_q_and_k_the_rows_stand_elsewhere(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", permute=False)
    written = random_weights(tiny_config(), seed=0, tied=False)
    with GGUFModel.open(path) as model:
        for name in ("blk.0.attn_q.weight", "blk.1.attn_k.weight"):
            assert not torch.equal(model.weight(name).blocks.view(torch.float32), written[name])


def test_un_permuting_undoes_the_converters_order() -> None:
    rows = torch.arange(4 * 6 * 3, dtype=torch.uint8).view(4 * 6, 3)
    assert torch.equal(unpermute_rows(permute_rows(rows, 4), 4), rows)
    one_head = torch.tensor([[0], [1], [2], [3]])  # pairs (0, 1) and (2, 3) are neighbours in the file
    assert unpermute_rows(one_head, 1).flatten().tolist() == [0, 2, 1, 3]


def test_a_missing_output_is_the_embedding(tmp_path: Path) -> None:
    with GGUFModel.open(write_tiny_gguf(tmp_path / "tied.gguf", tied=True)) as model:
        assert "output.weight" not in model
        assert torch.equal(model.weight("output.weight").blocks, model.weight("token_embd.weight").blocks)
    with GGUFModel.open(write_tiny_gguf(tmp_path / "untied.gguf")) as model:
        assert "output.weight" in model
        assert not torch.equal(model.weight("output.weight").blocks, model.weight("token_embd.weight").blocks)


def test_the_models_bytes_are_those_of_its_tensors(tmp_path: Path) -> None:
    num_values = sum(weight.numel() for weight in random_weights(tiny_config(), 0, tied=False).values())
    with GGUFModel.open(write_tiny_gguf(tmp_path / "tiny.gguf")) as model:
        assert model.num_bytes == 4 * num_values
        assert model.config == tiny_config()


def test_reading_every_weight_warns_of_nothing_and_leaves_no_file_open(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type="Q8_0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with GGUFModel.open(path) as model:
            assert path in open_files()
            for name in random_weights(tiny_config(), 0, tied=False):
                model.weight(name)
    del model
    gc.collect(1)  # and not what is older than this test
    assert path not in open_files()


def test_rope_factors_slow_what_the_metadata_say(tmp_path: Path) -> None:
    factors = np.arange(1, 33, dtype=np.float32)
    path = write_changed(tmp_path / "m.gguf", Change("rope_freqs.weight", factors))
    with GGUFModel.open(path) as model:
        assert model.config.rope_scaling.divisors == tuple(range(1, 33))


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan, np.inf])
def test_rope_factors_that_cannot_be_are_refused(tmp_path: Path, factor: float) -> None:
    factors = np.full(32, factor, np.float32)
    path = write_changed(tmp_path / "m.gguf", Change("rope_freqs.weight", factors))
    with pytest.raises(ModelFileError, match=r"m\.gguf: rope_freqs\.weight holds a factor not above 0"):
        GGUFModel.open(path)


def test_what_has_no_bias_beside_what_has_one_is_given_none(tmp_path: Path) -> None:
    values = np.arange(128, dtype=np.float32)
    with GGUFModel.open(write_changed(tmp_path / "m.gguf", Change("blk.0.attn_v.bias", values))) as model:
        (block,) = Llama.load(model).blocks
    assert block.attention.qkv.bias is not None
    assert block.attention.qkv.bias.tolist() == [0.0] * (256 + 128) + values.tolist()
    assert block.attention.output.bias is None


BAD_SETS = {
    "missing": (Change("blk.0.ffn_up.weight"), r"blk\.0\.ffn_up\.weight is missing"),
    "extra": (Change("blk.1.ffn_up.weight", np.ones((1, 1), "f")), r"'blk\.1\.ffn_up.weight' is no part"),
    "bias": (
        Change("blk.0.attn_norm.bias", np.ones(256, "f")),
        r"'blk\.0\.attn_norm\.bias' is no part of a Llama",
    ),
    "shape of a bias": (
        Change("blk.0.attn_k.bias", np.ones(256, "f")),
        r"'blk\.0\.attn_k\.bias' has shape \(256,\), expected \(128,\)",
    ),
    "shape": (
        Change("output_norm.weight", np.ones(32, "f")),
        r"'output_norm\.weight' has shape \(32,\), expected \(256,\)",
    ),
    "type": (
        Change("blk.0.ffn_gate.weight", np.zeros((32, 292), np.uint8), GGMLType.Q8_K),
        r"'blk\.0\.ffn_gate\.weight' is of type Q8_K, which is not supported\. .* its Q8_0",
    ),
}


OTHER_KINDS = {
    "adapter": (
        {"general.type": "adapter"},
        r"general\.type is 'adapter', 'model' is needed\. Take",
    ),
    "vocabulary": ({"general.type": "model"}, r"holds no tensors: it is only a vocabulary\. .* Q8_0"),
}


@pytest.mark.parametrize(("texts", "message"), OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_a_file_that_is_no_whole_model_says_what_it_is(
    tmp_path: Path, texts: dict[str, str], message: str
) -> None:
    keys = [raw_gguf.key(name, GGUFValueType.STRING, raw_gguf.string(text)) for name, text in texts.items()]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf.raw_gguf(*keys))
    with pytest.raises(ModelFileError, match=message):
        GGUFModel.open(path)


@pytest.mark.parametrize(("change", "message"), BAD_SETS.values(), ids=BAD_SETS.keys())
def test_another_set_of_tensors_is_refused_by_name(tmp_path: Path, change: Change, message: str) -> None:
    path = write_changed(tmp_path / "m.gguf", change)
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tensor {message}"):
        GGUFModel.open(path)
