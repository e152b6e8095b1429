"""A tokenizer.json gives the ids that its GGUF twin gives; the files beside it name the special tokens."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from gguf import TokenType
from tokenizers import AddedToken, Tokenizer as Engine, decoders, normalizers
from tokenizers.models import BPE, Unigram, WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.spm import recover_merges
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from tests.model.corpus import NUM_TEXTS, mixed_texts
from tests.model.sentence_piece import (
    BOS_ID,
    CONTROL_IDS,
    EOS_ID,
    USER_DEFINED,
    gguf_values,
    train_sentence_piece,
)
from tests.model.tiny_folder import read_tokenizer

BYTE_LEVEL = Path(__file__).with_name("reference_ids.json.gz")


@pytest.fixture(scope="session")
def sentence_piece() -> sentencepiece.SentencePieceProcessor:
    return train_sentence_piece()


@pytest.fixture(scope="session")
def spm_engine(sentence_piece: sentencepiece.SentencePieceProcessor) -> Engine:
    """Llama 2's tokenizer.json, for the small vocabulary."""
    values = gguf_values(sentence_piece)
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    normal = {token: token_id for token, token_id in ids.items() if kinds[token_id] == TokenType.NORMAL}
    merges = recover_merges(normal, values["tokenizer.ggml.scores"])
    engine = Engine(BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens(["<unk>", "<s>"])
    engine.add_tokens([AddedToken("</s>", normalized=False), AddedToken(USER_DEFINED, normalized=False)])
    engine.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS_ID)])
    return engine


def save(engine: Engine, folder: Path, **files: Any) -> Path:
    """Write tokenizer.json and, by their stems, JSON files beside it."""
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    engine.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "add_bos_token": True}


@pytest.mark.long
@NUM_TEXTS
def test_ids_and_pieces_equal_the_gguf_twins(
    spm_engine: Engine, sentence_piece: sentencepiece.SentencePieceProcessor, tmp_path: Path, num_texts: int
) -> None:
    twin = Tokenizer.from_metadata(Metadata(gguf_values(sentence_piece)))
    tokenizer = read_tokenizer(save(spm_engine, tmp_path, tokenizer_config=CONFIG))
    assert tokenizer.pieces == twin.pieces
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (twin.bos_id, twin.eos_ids)
    # After a user-defined token this kind of file begins with a space again, sentencepiece does not.
    texts = [text for text in mixed_texts(num_texts) if USER_DEFINED not in text]
    assert [text for text in texts if tokenizer.encode(text) != twin.encode(text)] == []


@pytest.mark.long
def test_no_text_becomes_a_control_token_even_if_the_file_calls_it_an_ordinary_one(
    spm_engine: Engine, tmp_path: Path
) -> None:
    tokenizer = read_tokenizer(save(spm_engine, tmp_path, tokenizer_config=CONFIG))
    for text in ("<s>", "</s>", "<unk>", "a</s>b", "<s> </s> <unk>"):
        assert CONTROL_IDS.isdisjoint(tokenizer.encode(text, add_bos=False))
        assert tokenizer.decode(tokenizer.encode(text)) == " " + text


def test_a_byte_level_file_gives_text_back_as_it_is(tmp_path: Path) -> None:
    alphabet = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    engine = Engine(BPE(vocab=alphabet, merges=[]))
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<|end|>"])
    tokenizer = read_tokenizer(save(engine, tmp_path, tokenizer_config={"eos_token": "<|end|>"}))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (None, frozenset({256}), False)
    for text in mixed_texts()[:500]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_says_whether_bos_is_added_and_a_flag_that_says_otherwise_is_told(
    spm_engine: Engine, tmp_path: Path
) -> None:
    for flag, complaints in ((True, 0), (False, 1), (None, 0)):
        config = {**CONFIG, "add_bos_token": flag}
        tokenizer = read_tokenizer(save(spm_engine, tmp_path, tokenizer_config=config))
        assert tokenizer.adds_bos
        assert [line for line in tokenizer.complaints if "add_bos_token" in line] == [*tokenizer.complaints]
        assert len(tokenizer.complaints) == complaints


def test_lengths_of_a_training_neither_cut_nor_fill_a_text(spm_engine: Engine, tmp_path: Path) -> None:
    trained = Engine.from_str(spm_engine.to_str())
    trained.enable_truncation(max_length=4)
    trained.enable_padding(length=64)
    tokenizer = read_tokenizer(save(trained, tmp_path, tokenizer_config=CONFIG))
    assert tokenizer.decode(tokenizer.encode("kalo " * 5)) == " " + "kalo " * 5


def test_every_end_that_the_files_name_ends_a_generation(spm_engine: Engine, tmp_path: Path) -> None:
    generation = {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID, 300]}
    path = save(spm_engine, tmp_path, tokenizer_config=CONFIG, generation_config=generation)
    assert read_tokenizer(path).eos_ids == {EOS_ID, 300}


def test_without_other_files_the_model_s_configuration_names_the_ends(
    spm_engine: Engine, tmp_path: Path
) -> None:
    path = save(spm_engine, tmp_path, config={"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    tokenizer = read_tokenizer(path)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (BOS_ID, frozenset({EOS_ID}))


BAD_FILES = {
    "not JSON": ("{", "tokenizer.json: not JSON"),
    "nested too deep": ("[" * 100_000, "tokenizer.json: nested more than 32 deep, which is the limit"),
    "a list": ("[]", "tokenizer.json: holds a list, an object is needed"),
    "no model": ("{}", "tokenizer.json: model is missing"),
    "no vocabulary": ('{"model": {"type": "BPE"}}', "tokenizer.json: not a tokenizer"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_broken_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match=message):
        read_tokenizer(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: no such file"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_other_kinds_of_tokenizers_are_named(tmp_path: Path) -> None:
    for kind, model in (("Unigram", Unigram([("a", 0.0)])), ("WordLevel", WordLevel({"a": 0}, "a"))):
        with pytest.raises(ModelFileError, match=rf"model\.type is '{kind}', only 'BPE'"):
            read_tokenizer(save(Engine(model), tmp_path))
    plain = Engine(BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(ModelFileError, match="decoder is neither ByteLevel nor"):
        read_tokenizer(save(plain, tmp_path))
    plain.decoder = decoders.WordPiece()
    with pytest.raises(ModelFileError, match="decoder: type is 'WordPiece', supported are"):
        read_tokenizer(save(plain, tmp_path))


@pytest.mark.parametrize("config", [{"eos_token": "<new>"}, {"bos_token": {"content": "<new>"}}])
def test_a_special_token_outside_the_vocabulary_comes_to_it_where_the_model_has_a_row(
    spm_engine: Engine, tmp_path: Path, config: dict[str, Any]
) -> None:
    path, num_tokens = save(spm_engine, tmp_path, tokenizer_config=config), spm_engine.get_vocab_size()
    assert TokenizerJson.open(path).control_ids["<new>"] == num_tokens
    without = TokenizerJson.open(path, num_tokens)
    assert "<new>" not in without.control_ids
    assert f"'<new>' ({num_tokens})" in without.complaints[0]


@pytest.mark.long
@NUM_TEXTS
@pytest.mark.parametrize(
    ("family", "special"),
    [
        ("Qwen2Tokenizer", ("<|endoftext|>",)),
        ("GPT2Tokenizer", ("<|endoftext|>",)),
        ("CohereTokenizer", ()),
        ("LlamaTokenizer", ()),
        ("GemmaTokenizer", ("<pad>", "<eos>", "<bos>")),
    ],
)
def test_ids_equal_those_of_transformers_own_families(
    sentence_piece: sentencepiece.SentencePieceProcessor,
    tmp_path: Path,
    family: str,
    special: tuple[str, ...],
    num_texts: int,
) -> None:
    """As it builds them where there is no tokenizer.json: with the steps of each."""
    import transformers

    if family in ("LlamaTokenizer", "GemmaTokenizer"):
        values = gguf_values(sentence_piece)
        tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
        normal = {token: n for n, token in enumerate(tokens) if kinds[n] == TokenType.NORMAL}
        merges = recover_merges(normal, values["tokenizer.ggml.scores"])
    else:
        content = json.loads(gzip.decompress(BYTE_LEVEL.read_bytes()))
        tokens = content["tokens"]
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in content["merges"])]
    ids = {token: token_id for token_id, token in enumerate((*tokens, *special))}
    oracle = getattr(transformers, family)(vocab=ids, merges=merges)
    oracle.save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    engine = oracle.backend_tokenizer
    engine.encode_special_tokens = True
    for text in mixed_texts(num_texts):
        assert tokenizer.encode(text, add_bos=False) == engine.encode(text, add_special_tokens=False).ids
