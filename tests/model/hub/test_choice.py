"""Which files of a repository are taken, by what is asked for and what there is room for."""

from collections.abc import Mapping

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.hub.choice import ChosenFiles, Room, candidates, choose, choose_texts
from llama_herd.model.hub.listing import HubFile, RepoListing
from llama_herd.model.hub.name import HubName

REPO = "owner/big-GGUF"
GB = 10**9

#: Sizes of an 8B's files, in GB, as repositories name them.
SIZES = {
    "F16": 16.1,
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.7,
    "Q4_K_M": 4.9,
    "Q4_0": 4.7,
    "IQ4_XS": 4.4,
    "Q3_K_M": 4.0,
    "Q2_K": 3.2,
}


def listing(sizes: Mapping[str, float]) -> RepoListing:
    files = (HubFile(name, int(size * GB), 64 * "a") for name, size in sizes.items())
    return RepoListing(REPO, 40 * "c", tuple(files))


BIG = listing({f"big-{type}.gguf": size for type, size in SIZES.items()} | {"mmproj-big-F16.gguf": 0.1})


def chosen(listing: RepoListing, which: str = "", gb: float = 0) -> ChosenFiles:
    name = HubName.parse(f"{REPO}:{which}" if which else REPO)
    return choose(listing, name, lambda: Room(int(gb * GB), "of all free on cpu"))


@pytest.mark.parametrize(
    ("gb", "type"),
    [
        (20, "Q8_0"),
        (8.5, "Q8_0"),
        (8.4, "Q6_K"),
        (6.5, "Q4_K_M"),
        (4.8, "Q4_0"),
        (4.5, "IQ4_XS"),
        (3.3, "Q2_K"),
    ],
)
def test_the_most_exact_that_is_fast_and_fits_is_taken_else_the_largest(gb: float, type: str) -> None:
    found = chosen(BIG, gb=gb)
    assert found.name == f"big-{type}.gguf"
    assert f"of 9 that fits {gb:.1f} GB (of all free on cpu)" in found.why


def test_where_nothing_fits_the_smallest_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"big-Q2_K\.gguf, takes 3\.2 GB, and weights may take 3\.0 GB"):
        chosen(BIG, gb=3)


def test_what_is_named_is_taken_whether_it_fits_or_not() -> None:
    assert chosen(BIG, "f16").name == chosen(BIG, "big-F16.gguf").name == "big-F16.gguf"
    assert chosen(listing({"big.gguf": 9}), gb=1).name == "big.gguf"


@pytest.mark.parametrize(
    "which", ["Q4_K", "Q9_0", "nothing", "big-Q9.gguf", "../big-F16.gguf", "mmproj-big-F16.gguf"]
)
def test_what_is_not_there_is_answered_with_what_is(which: str) -> None:
    with pytest.raises(ModelFileError, match=r"no GGUF file .*Fix: name one of big-F16\.gguf, big-IQ4_XS"):
        chosen(BIG, which)


def test_of_two_models_of_a_type_neither_is_taken() -> None:
    two = listing({"a-Q8_0.gguf": 1, "b-Q8_0.gguf": 1})
    with pytest.raises(
        ModelFileError, match=r"2 files of type Q8_0\. Fix: name one of a-Q8_0\.gguf, b-Q8_0\.gguf"
    ):
        chosen(two, "Q8_0")
    same = listing({"a/x.gguf": 1, "b/x.gguf": 1})
    assert chosen(same, "b/x.gguf").name == "b/x.gguf"
    with pytest.raises(ModelFileError, match=r"several x\.gguf"):
        chosen(same, "x.gguf")


def test_parts_are_one_model_and_without_one_of_them_none() -> None:
    parts = {f"Q8_0/b-Q8_0-0000{number}-of-00003.gguf": 1.0 for number in (1, 2, 3)}
    found = chosen(listing(parts), "Q8_0")
    assert [file.name for file in found.files] == [*parts]
    assert (found.name, found.num_bytes) == (next(iter(parts)), 3 * GB)
    for name in parts:
        assert candidates(listing({key: 1 for key in parts if key != name}).files) == []


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("tinyllama-1.1b-chat-v1.0.Q8_0.gguf", "Q8_0"),
        ("gemma-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-IQ2_XXS.gguf", "IQ2_XXS"),
        ("m-bf16.gguf", "BF16"),
        ("oss-mxfp4.gguf", "MXFP4"),
        ("x/m-F16-00001-of-00001.gguf", "F16"),
        ("Qwen3-4B.gguf", ""),
    ],
)
def test_a_name_tells_the_type(name: str, type: str) -> None:
    assert [one.type for one in candidates(listing({name: 1}).files)] == [type]


FOLDER = {
    "config.json": 0,
    "tokenizer.json": 0,
    "model.safetensors": 1,
    "README.md": 0,
    "pytorch_model.bin": 1,
}


def test_a_folder_comes_with_what_is_read_of_it_and_its_weights_last() -> None:
    found = chosen(listing(FOLDER))
    assert [file.name for file in found.files] == ["config.json", "tokenizer.json", "model.safetensors"]
    assert found.name == ""


def test_templates_with_names_come_too() -> None:
    """Without that for tools, a chat with tools would be written without them."""
    folder = "additional_chat_templates"
    templates = ["chat_template.jinja", f"{folder}/rag.jinja", f"{folder}/tool_use.jinja"]
    files = FOLDER | dict.fromkeys([*templates, f"{folder}/x/a.jinja", "a/b.jinja"], 0)
    of_texts = choose_texts(listing(files), HubName.parse(REPO), lambda: Room(0, "nowhere"))
    for found in (chosen(listing(files)), of_texts):
        assert [file.name for file in found.files if file.name.endswith(".jinja")] == templates


def test_behind_a_server_only_what_tells_of_texts_comes() -> None:
    files = FOLDER | dict.fromkeys(["tokenizer_config.json", "generation_config.json"], 0)
    without_weights = {name: size for name, size in files.items() if name != "model.safetensors"}
    for some in (files, without_weights):
        found = choose_texts(listing(some), HubName.parse(REPO), lambda: Room(0, "nowhere"))
        assert {file.name for file in found.files} == set(without_weights) - {
            "README.md",
            "pytorch_model.bin",
        }
        assert found.name == ""
    assert choose_texts(BIG, HubName.parse(REPO), lambda: Room(0, "")).name == "big-Q2_K.gguf"
    assert choose_texts(BIG, HubName.parse(f"{REPO}:Q4_0"), lambda: Room(0, "")).name == "big-Q4_0.gguf"


def test_a_folder_of_an_embedder_comes_with_its_modules() -> None:
    """Without them it would be taken for a model that generates."""
    modules = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"]
    of_modules = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    others = [
        "onnx/config.json",
        "openvino/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "1/2_X/config.json",
    ]
    found = chosen(listing(FOLDER | dict.fromkeys([*others, *of_modules, *modules], 1)))
    top = ["config.json", "tokenizer.json", *modules]
    assert [file.name for file in found.files] == [*top, *of_modules, "model.safetensors"]


@pytest.mark.parametrize(
    ("lacks", "complaint"),
    [
        ("config.json", "holds neither GGUF files nor config.json"),
        ("model.safetensors", "holds neither GGUF files nor config.json"),
        ("tokenizer.json", "holds no tokenizer.json"),
    ],
)
def test_a_folder_that_no_worker_could_read_does_not_come(lacks: str, complaint: str) -> None:
    with pytest.raises(ModelFileError, match=complaint):
        chosen(listing({name: size for name, size in FOLDER.items() if name != lacks}))


def test_an_adapter_alone_is_called_one_and_beside_weights_it_is_told_of() -> None:
    adapter = {"adapter_config.json": 0, "adapter_model.safetensors": 1}
    with pytest.raises(ModelFileError, match=r"an adapter, which is no model.*Fix: name"):
        chosen(listing(adapter | {"tokenizer.json": 0}))
    assert chosen(listing(FOLDER | adapter)).has("adapter_config.json")
