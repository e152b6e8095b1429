"""What a model is for, as its files say it; files that say what is not computed here are refused by name."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.shape.gguf_purpose import gguf_purpose
from llama_herd.model.shape.modules_json import folder_purpose
from llama_herd.model.shape.pooling import Override, Pooling
from llama_herd.model.shape.purpose import Dense, Embeds, Generates, Ranks, overridden
from tests.model.modules_folder import (
    LAST,
    NORMALIZE,
    TANH,
    ModuleRow,
    dense_row,
    write_modules,
)
from tests.model.tiny_family import SHAPE

LABELS = {"qwen3.classifier.output_labels": ("yes", "no")}
TEMPLATE = {"tokenizer.chat_template.rerank": "Is {document} about {query}?"}


def of_gguf(**values: Any) -> Any:
    return gguf_purpose(Metadata(values, "some.gguf"), "qwen3")


def refused(*rows: ModuleRow, folder: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        folder_purpose(write_modules(folder, *rows), 64)
    return str(caught.value)


@pytest.mark.parametrize(
    ("number", "purpose"),
    [
        (None, Generates()),
        (0, Generates()),
        (1, Embeds(Pooling.MEAN)),
        (2, Embeds(Pooling.CLS)),
        (3, Embeds(Pooling.LAST)),
    ],
)
def test_a_gguf_file_says_its_pooling_by_a_number(number: int | None, purpose: object) -> None:
    assert of_gguf(**({} if number is None else {"qwen3.pooling_type": number})) == purpose


def test_a_gguf_file_that_ranks_has_labels_and_a_template() -> None:
    purpose = of_gguf(**{"qwen3.pooling_type": 4}, **LABELS, **TEMPLATE)
    assert purpose == Ranks(
        template='{{ "Is " }}{{ messages[-1].content }}{{ " about " }}{{ messages[-2].content }}{{ "?" }}'
    )


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (
            TEMPLATE,
            r"classifier.output_labels is missing, \('yes', 'no'\) is needed to rank. Take a file that",
        ),
        (
            TEMPLATE | {"qwen3.classifier.output_labels": ("LABEL_0",)},
            r"is \('LABEL_0',\), \('yes', 'no'\) is",
        ),
        (LABELS, "tokenizer.chat_template.rerank is missing, which is needed to rank. Take a file that"),
        (LABELS | {"tokenizer.chat_template.rerank": "{query}"}, "lacks {query} or {document}"),
    ],
)
def test_a_gguf_file_that_ranks_by_half_is_refused(rest: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"some.gguf: .*{message}"):
        of_gguf(**{"qwen3.pooling_type": 4}, **rest)


def test_a_folder_without_modules_generates(tmp_path: Path) -> None:
    assert folder_purpose(tmp_path, 64) == Generates()


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
        ({"pooling_mode": ["cls"]}, Pooling.CLS),
        ({"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}, Pooling.LAST),
        ({"pooling_mode_mean_tokens": True}, Pooling.MEAN),
        ({"pooling_mode_mean_tokens": False}, Pooling.MEAN),  # as there: a vector has to come from somewhere
        ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, Pooling.MEAN),
    ],
)
def test_a_folder_says_its_pooling_in_words_of_any_age(
    config: dict[str, Any], pooling: Pooling, tmp_path: Path
) -> None:
    folder = write_modules(tmp_path, ("Pooling", config))
    assert folder_purpose(folder, 64) == Embeds(pooling, is_normalised=False)


def test_a_folder_says_layers_prompts_and_lengths(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "document"}
    pooling = ("Pooling", {"pooling_mode": "mean", "include_prompt": False})
    rows = [pooling, dense_row(64, 96), dense_row(96, 32, TANH, bias=True), NORMALIZE]
    folder = write_modules(tmp_path, *rows, prompts=prompts)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 512}))
    dense = (
        Dense(folder / "2_Dense" / "model.safetensors", 64, 96, False, "Identity"),
        Dense(folder / "3_Dense" / "model.safetensors", 96, 32, True, "Tanh"),
    )
    purpose = folder_purpose(folder, 64)
    assert purpose == Embeds(
        Pooling.MEAN, True, dense, {"query": "query: ", "document": ""}, "document", False, 512
    )
    assert isinstance(purpose, Embeds)
    assert purpose.width(64) == 32


def test_a_folder_that_ranks_names_its_tokens(tmp_path: Path) -> None:
    row = ("LogitScore", {"true_token_id": 7, "false_token_id": 9})
    prompts = {"prompts": {"web": "Find what answers."}, "default_prompt_name": "web"}
    folder = write_modules(tmp_path, row, prompts=prompts)
    assert folder_purpose(folder, 64) == Ranks((7, 9), instruction="Find what answers.")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([NORMALIZE], "has the modules 'Transformer Normalize', which is not supported"),
        ([LAST, NORMALIZE, dense_row(64, 64)], "'Transformer Pooling Normalize Dense', which is not"),
        ([("Pooling", {"pooling_mode": "max"})], "pooling_mode is 'max', supported are lasttoken, mean, cls"),
        ([("Pooling", {"pooling_mode": ["cls", "mean"]})], r"is 'cls \+ mean', supported are"),
        ([("Pooling", {"pooling_mode": [["mean"]]})], r"""pooling_mode is "\['mean'\]", supported are"""),
        ([LAST, dense_row(32, 64)], "in_features is 32, but what comes before it has 64"),
        ([LAST, dense_row(64, 64, "torch.nn.GELU")], "activation_function is 'torch.nn.GELU', supported are"),
        ([LAST, ("Dense", {**dense_row(64, 64)[1], "use_residual": True})], "use_residual is true, which is"),
        (
            [LAST, ("Dense", {**dense_row(64, 64)[1], "module_input_name": "x"})],
            "module_input_name is 'x', only",
        ),
        ([("LogitScore", {"false_token_id": 9})], "true_token_id is missing"),
    ],
)
def test_modules_that_are_not_computed_are_refused(
    rows: list[ModuleRow], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=message):
        folder_purpose(write_modules(tmp_path, *rows), 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"type": "custom_st.Transformer"},
            "modules.json: type is 'custom_st.Transformer', whose code is not run",
        ),
        ({"path": "../elsewhere"}, "path is '../elsewhere': the first module's is '', others name a folder"),
        ({"path": ".."}, "path is '..': the first module's is '', others name a folder"),
        ({"path": ""}, "path is '': the first module's is '', others name a folder"),
        ({"path": None}, "path is null"),
    ],
)
def test_modules_of_elsewhere_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_modules(tmp_path, LAST)
    first, second = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([first, {**second, **change}]))
    with pytest.raises(ModelFileError, match=message):
        folder_purpose(folder, 64)


def test_a_dense_layer_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, LAST, dense_row(64, 32))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(
        ModelFileError, match=r"2_Dense/model.safetensors: missing. .* pickles are never opened"
    ):
        folder_purpose(folder, 64)


def test_texts_in_lower_case_and_unknown_prompts_are_refused(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, LAST, prompts={"prompts": {}, "default_prompt_name": "query"})
    with pytest.raises(ModelFileError, match=r"default_prompt_name is 'query', known are \[\]"):
        folder_purpose(folder, 64)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(ModelFileError, match="do_lower_case is true, which is not supported"):
        folder_purpose(folder, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_causal": False}, "is_causal is false: its tokens see those after them, which is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true: its tokens see"),
        (
            {"architectures": ["Qwen3ForSequenceClassification"]},
            "architectures is 'Qwen3ForSequ.*no language",
        ),
        (
            {"architectures": ["LlamaBidirectionalModel"]},
            "architectures is 'LlamaBidirectionalModel': its tokens",
        ),
        ({"model_type": "llama_bidirec"}, "model_type is 'llama_bidirec': its tokens see those after them"),
        (
            {"model_type": "xlm-roberta"},
            "model_type is 'xlm-roberta': its tokens see .* such as Qwen3-Embedding",
        ),
    ],
)
def test_a_config_json_that_is_no_causal_language_model_is_refused(
    change: dict[str, Any], message: str
) -> None:
    values = {"model_type": "qwen3", **SHAPE}
    LlamaConfig.from_json({**values, "is_causal": True, "architectures": ["Qwen3ForCausalLM"]})
    LlamaConfig.from_json({**values, "is_causal": None, "architectures": None})
    with pytest.raises(ModelFileError, match=message):
        LlamaConfig.from_json({**values, **change})


def test_a_gguf_file_of_a_bidirectional_architecture_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match="architecture is 'gemma-embedding': its tokens see those after"):
        LlamaConfig.from_metadata(Metadata({"general.architecture": "gemma-embedding"}))


@pytest.mark.parametrize("own", [Generates(), Embeds(Pooling.MEAN, is_normalised=False), Ranks((7, 9))])
def test_a_setting_overrides_what_the_files_say_with_a_warning(own: Any) -> None:
    assert overridden(own, "auto", "x.gguf") == (own, ())
    for override in get_args(Override)[1:]:
        purpose, warnings = overridden(own, override, "x.gguf")
        assert isinstance(purpose, Ranks if override == "rank" else Embeds)
        assert getattr(purpose, "pooling", "rank") == override
        if purpose == own:
            assert warnings == ()
        else:
            (warning,) = warnings
            told = f"by its files it {own.sentence}, but HERD_POOLING={override}, so it {purpose.sentence}"
            assert warning == f"x.gguf: {told}"
    kept, _ = overridden(Embeds(Pooling.MEAN, is_normalised=False), "last", "x.gguf")
    assert kept == Embeds(Pooling.LAST, is_normalised=False)
