"""Folders that name their special tokens in all the ways that their files have, drawn at random."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Engine, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

Json = dict[str, Any]
#: A file that is not there; within a file a key that is not there.
ABSENT = object()

WORDS = ['the herd of llamas and the queue of the herd, "a" #1 <|im_start|>'] * 9
#: Marks that a folder may name, beyond those that no file does.
START, END, TEXT_END, TOOL, IMAGE = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|tool|>", "<img>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}<|tool|><img>{{ image_token }}{{ eos_token }}"
)


def token(text: str, **flags: bool) -> Json:
    """A token as an object, as tokenizer_config.json has it."""
    return {
        "__type": "AddedToken",
        "content": text,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
        **flags,
    }


@cache
def engine() -> Json:
    """A byte-level tokenizer.json without added tokens."""
    made = Engine(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        WORDS, BpeTrainer(vocab_size=300, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    )
    values: Json = json.loads(made.to_str())
    return values


NUM_WORDS = len(engine()["model"]["vocab"])
#: Ids of what a tokenizer.json lists, in this order.
TEXT_END_ID, START_ID, END_ID = range(NUM_WORDS, NUM_WORDS + 3)
#: Ids that a file may name: special ones, a word, lists, and what is no id.
IDS: tuple[Any, ...] = (
    ABSENT,
    None,
    END_ID,
    TEXT_END_ID,
    2,
    [END_ID, TEXT_END_ID],
    [END_ID, 9_999],
    9_999,
    -1,
    2.0,
    "2",
    [],
    True,
)


def _around(*items: str) -> Json:
    single = [{"Sequence" if item == "A" else "SpecialToken": {"id": item, "type_id": 0}} for item in items]
    special = {
        name: {"id": name, "ids": [token_id], "tokens": [name]}
        for name, token_id in ((TEXT_END, TEXT_END_ID), (END, END_ID))
    }
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

#: Every way of every file, by what it is about.
AXES: Mapping[str, tuple[Any, ...]] = {
    "config eos": IDS,
    "config bos": (ABSENT, 1, TEXT_END_ID, 9_999),
    "generation": (ABSENT, ABSENT, *({"eos_token_id": ids} for ids in IDS if ids is not ABSENT), {}),
    "copied": (ABSENT, True),
    "eos": (ABSENT, None, END, token(END), token(END, special=True), "<|new|>", "the", 7, {}),
    "bos": (ABSENT, None, TEXT_END, token(TEXT_END, special=True), START),
    "pad": (ABSENT, None, "<pad>", END),
    "extra": (ABSENT, [TOOL], [TOOL, IMAGE], {"image_token": IMAGE}, []),
    "old extra": (ABSENT, [TOOL], [START, END, TOOL]),
    "decoder": (
        ABSENT,
        ABSENT,
        {str(END_ID + 1): token(TOOL, special=True)},
        {str(END_ID): token(END, special=True), str(END_ID + 1): token(TOOL, special=False)},
        {},
    ),
    "adds bos": (ABSENT, True, False),
    "map": (
        ABSENT,
        ABSENT,
        {"eos_token": START, "bos_token": TEXT_END},
        {"eos_token": token(END)},
        {"eos_token": None},
        {"additional_special_tokens": [TOOL]},
        {"extra_special_tokens": [IMAGE], "pad_token": "<pad>"},
    ),
    "added": (ABSENT, ABSENT, {IMAGE: END_ID + 2, TOOL: END_ID + 1}, {END: END_ID, IMAGE: END_ID + 1}, {}),
    "listed": ("special", "special", "plain", "none"),
    "around": (None, _BYTES, _around(TEXT_END, "A"), _around("A", END), _around(TEXT_END, "A", END)),
    "wrapped": (False, True),
    "spare rows": (16, 16, 0),
}


def draw_folder(rng: random.Random) -> Json:
    """One value of each axis."""
    return {name: rng.choice(values) for name, values in AXES.items()}


def write_folder(folder: Path, choice: Json) -> Path:
    """Write what a choice says; return the tokenizer.json."""
    folder.mkdir(parents=True)
    around = choice["around"]
    if choice["wrapped"] and around is not None:
        around = {"type": "Sequence", "processors": [_BYTES, around]}
    names = [] if choice["listed"] == "none" else [TEXT_END, START, END]
    is_special = choice["listed"] == "special"
    listed = [
        {"id": NUM_WORDS + n, "content": name, "special": is_special, **_FLAGS}
        for n, name in enumerate(names)
    ]
    if not listed:  # then these are words like any other
        around = None if around is not _BYTES else around
    config = {
        "model_type": "llama",
        "eos_token_id": choice["config eos"],
        "bos_token_id": choice["config bos"],
    }
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": choice["eos"],
        "bos_token": choice["bos"],
        "pad_token": choice["pad"],
        "extra_special_tokens": choice["extra"],
        "additional_special_tokens": choice["old extra"],
        "added_tokens_decoder": choice["decoder"],
        "add_bos_token": choice["adds bos"],
    }
    generation = choice["generation"]
    if generation is not ABSENT:
        generation = {**generation, "_from_model_config": choice["copied"]}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", generation)
    _write(folder / "tokenizer_config.json", tokens)
    _write(folder / "special_tokens_map.json", choice["map"])
    _write(folder / "added_tokens.json", choice["added"])
    _write(folder / "tokenizer.json", {**engine(), "added_tokens": listed, "post_processor": around})
    return folder / "tokenizer.json"


def num_rows(choice: Json) -> int:
    """The rows of a model for it: of all tokens that are listed, and some to spare."""
    return NUM_WORDS + 3 + int(choice["spare rows"])


_FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


def _write(path: Path, values: Any) -> None:
    if values is not ABSENT:
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not ABSENT}))
