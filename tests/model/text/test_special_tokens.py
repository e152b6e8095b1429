"""A folder's special tokens are those of transformers, whatever names them, or a warning says not."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from llama_herd.errors import GenerationError
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.special_tokens import entry_of
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from llama_herd.model.text.vocabulary import end_names
from tests.drawing import draw
from tests.model.text.made_folders import AXES, Json, draw_folder, engine, num_rows, write_folder
from tests.model.tiny_folder import tiny_engine

TEXT = 'the herd of "a" #1 llamas'
CHAT = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "the queue"}]
#: Chats need a process each: so many folders have one.
EVERY = 10


def choices(num: int) -> list[Json]:
    rng = random.Random(0)
    return [draw_folder(rng) for _ in range(num)]


def pairwise() -> list[Json]:
    """Of so many those in which each value of an axis comes once."""
    drawn = choices(300)
    return [drawn[n] for n in draw(dict(enumerate(drawn)), 1)]


@pytest.mark.long
def test_special_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    assert wrong_folders(pairwise(), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_special_tokens_are_those_of_transformers_in_all_ways(tmp_path: Path) -> None:
    assert wrong_folders(choices(2_000), tmp_path) == []


OWN_CLASSES = {
    "LlamaTokenizer": ("<unk>", "<s>", "</s>"),
    "GemmaTokenizer": ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
    "Qwen2Tokenizer": ("<|endoftext|>", "<|im_end|>"),
    "GPT2Tokenizer": ("<|endoftext|>",),
}


@pytest.mark.long
@pytest.mark.parametrize("eos", ["absent", "null", "stated"])
@pytest.mark.parametrize("name", OWN_CLASSES)
def test_a_class_of_transformers_has_roles_that_no_file_states(tmp_path: Path, name: str, eos: str) -> None:
    import transformers

    tokens = OWN_CLASSES[name]
    is_spm = name in ("LlamaTokenizer", "GemmaTokenizer")
    file = json.loads(tiny_engine().to_str()) if is_spm else dict(engine())
    vocabulary = file["model"]["vocab"]
    new = [token for token in tokens if token not in vocabulary]
    file["added_tokens"] = [entry_of(AddedToken(token), len(vocabulary) + n) for n, token in enumerate(new)]
    config: Json = {"tokenizer_class": f"{name}Fast"}
    if eos != "absent":
        config["eos_token"] = tokens[-1] if eos == "stated" else None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**file, "post_processor": None}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    ours = TokenizerJson.open(path)
    assert ours.roles == theirs.special_tokens_map
    assert theirs.eos_token_id in (None, *ours.eos_ids)


def wrong_folders(choices: list[Json], folder: Path) -> list[str]:
    """What differs, with the choice that made it."""
    wrong = []
    for number, choice in enumerate(choices):
        path = write_folder(folder / str(number), choice)
        differences = list(differing(path, choice, has_chat=number % EVERY == 0))
        if differences:
            wrong.append(f"{number}: {differences} of {choice}")
    return wrong


def differing(path: Path, choice: Json, *, has_chat: bool) -> Iterator[str]:
    """What of a folder is not as in transformers, and of which no complaint tells."""
    file = TokenizerJson.open(path, num_rows(choice))
    ours = Tokenizer.from_json(file)
    complaints = " ".join(ours.complaints)
    theirs = load_truth(path.parent)
    if theirs is None:
        return
    if "have no row" in complaints:  # then theirs has ids that its model lacks
        assert max(theirs.get_vocab().values()) >= num_rows(choice)
        return
    stops = {theirs.eos_token_id, *stated_ends(path.parent, num_rows(choice))} - {None}
    named = {theirs.convert_tokens_to_ids(name) for name in end_names(theirs.get_added_vocab())}
    if ours.eos_ids != stops | named and "eos_token_id" not in complaints:
        yield f"stops {sorted(ours.eos_ids)}, not {sorted(stops)} and {sorted(named)}"
    if ours.encode(TEXT) != theirs(TEXT).input_ids:
        yield f"ids {ours.encode(TEXT)}, not {theirs(TEXT).input_ids}"
    for token_id in range(len(theirs)):
        text = theirs.decode([token_id], skip_special_tokens=True)
        is_end = token_id in ours.eos_ids and not ours.pieces[token_id]
        if not is_end and ours.decode([token_id]) != text:
            yield f"text of {token_id}: {ours.decode([token_id])!r}, not {text!r}"
    plain = [name for name, token_id in theirs.get_added_vocab().items() if ours.pieces[token_id]]
    theirs.backend_tokenizer.encode_special_tokens = True
    spelt = f"the{'herd'.join(plain)} of"
    if ours.encode(spelt, add_bos=False) != theirs(spelt, add_special_tokens=False).input_ids:
        yield f"ids of {spelt}"
    theirs.backend_tokenizer.encode_special_tokens = False
    if file.roles != theirs.special_tokens_map:
        yield f"roles {file.roles}, not {theirs.special_tokens_map}"
    if has_chat:
        yield from differing_chat(file, ours, theirs)


def differing_chat(file: TokenizerJson, ours: Tokenizer, theirs: Any) -> Iterator[str]:
    expected = theirs.apply_chat_template(CHAT, return_dict=False)
    try:
        with ChatTemplates(ours.chat_templates, ours, ControlTokens.from_json(file)) as templates:
            ids = templates.encode(Chat(CHAT))
    except GenerationError as error:
        yield f"chat: {error}"
        return
    if ids != expected:
        yield f"chat {theirs.decode(ids)!r}, not {theirs.decode(expected)!r}"


def load_truth(folder: Path) -> Any:
    """transformers' tokenizer; None where it takes none of the folder."""
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(folder)
    except (TypeError, ValueError, AttributeError):
        return None


def stated_ends(folder: Path, num_rows: int) -> set[int]:
    """The ids at which `generate` stops: of generation_config.json, or if there is none of config.json."""
    own = folder / "generation_config.json"
    stated = json.loads((own if own.is_file() else folder / "config.json").read_text()).get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    return {token_id for token_id in ids if type(token_id) is int and 0 <= token_id < num_rows}


def test_a_folder_of_each_value_is_drawn() -> None:
    drawn = pairwise()
    assert all(
        any(choice[name] is value for choice in drawn) for name, values in AXES.items() for value in values
    )
