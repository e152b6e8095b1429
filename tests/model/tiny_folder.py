"""Tiny Llamas as Hugging Face folders, saved by transformers: the weights and vocabulary of a GGUF file.

Nothing here imports transformers before it is needed: that takes two seconds.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import TokenType
from tokenizers import Tokenizer as Engine, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from llama_herd.model.text.spm import recover_merges
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from tests.tiny import BOS_ID, oracle, tiny_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def write_tiny_folder(folder: Path, gguf_file: Path, **config_changes: Any) -> Path:
    """Write the model of a tiny GGUF file as config.json, model.safetensors and tokenizer.json."""
    oracle(gguf_file, **config_changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json and the files beside it."""
    return Tokenizer.from_json(TokenizerJson.open(path))


def write_tiny_tokenizer(folder: Path, **config: object) -> Path:
    """Write the tokenizer alone, without transformers; return its file."""
    path = folder / "tokenizer.json"
    tiny_engine().save(str(path))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **config}))
    return path


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """transformers' tokenizer of the tiny vocabulary."""
    from transformers import PreTrainedTokenizerFast

    specials = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tiny_engine(), add_bos_token=True, **specials)


def tiny_engine() -> Engine:
    """The tiny vocabulary's tokenizer, built as Llama 2's tokenizer.json is."""
    pieces = tiny_vocabulary()
    ids = {piece.text: token_id for token_id, piece in enumerate(pieces)}
    normal = {text: token_id for text, token_id in ids.items() if pieces[token_id].type == TokenType.NORMAL}
    merges = recover_merges(normal, [piece.score for piece in pieces])
    engine = Engine(BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS_ID)])
    return engine
