"""The sampling that a model's makers recommend, from both kinds of files, as far as it is of use."""

import json
from pathlib import Path
from typing import Any

import pytest

from llama_herd.model.files.open_model import open_model
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.recommended_sampling import folder_sampling, metadata_sampling
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.loading.servable_texts import ServableTexts
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (None, {}),
        ({"do_sample": True, "eos_token_id": 2}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 50}, {"temperature": 0.6, "top_p": 0.9, "top_k": 50}),
        ({"repetition_penalty": 1.05, "min_p": 0}, {"repetition_penalty": 1.05, "min_p": 0}),
        ({"temperature": None, "top_k": "50", "top_p": True}, {}),
        ({"_from_model_config": True, "temperature": 0.6}, {}),
    ],
)
def test_a_folder_recommends_what_its_generation_config_says(
    tmp_path: Path, told: Any, found: dict[str, float]
) -> None:
    if told is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(told))
    assert folder_sampling(tmp_path) == found
    assert set(found) <= set(SamplingParams.model_fields)


def test_a_gguf_file_recommends_by_its_own_keys() -> None:
    told = {"general.sampling.temp": 0.5, "general.sampling.penalty_last_n": 64, "general.name": "x"}
    assert metadata_sampling(Metadata(told)) == {"temperature": 0.5, "repeat_last_n": 64}
    assert metadata_sampling(Metadata({})) == {}


def test_what_no_job_may_have_is_left_out(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "own.gguf", sampling={"temp": 9.0, "top_p": 0.9, "min_p": -1.0})
    with open_model(path) as file:
        texts = ServableTexts(file, file.read_tokenizer(), WorkerSettings())
        assert texts.sampling == {"top_p": 0.9}
