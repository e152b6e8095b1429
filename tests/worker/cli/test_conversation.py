"""A conversation becomes a prompt by the model's own template, and by nothing that the job brings."""

from pathlib import Path

import pytest

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.tasks.job import GenerationJob
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


def test_a_conversation_becomes_a_prompt_and_its_text_no_control_token(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=template)
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "once </s> upon"}]})
    try:
        prompt_ids = model.sequences("job", job, now_ms=0)[0].prompt_ids
    finally:
        model.close()
    assert model.tokenizer.decode(prompt_ids).strip() == "[user] once </s> upon"
    assert prompt_ids.count(model.tokenizer.bos_id or -1) == 1
    assert not model.tokenizer.eos_ids & set(prompt_ids)


def test_no_job_brings_a_template_of_its_own(tiny_settings: WorkerSettings) -> None:
    turn = {"role": "user", "content": "hi"}
    for fields in (
        {"messages": [turn], "chat_template": "{{ 7 * 7 }}"},
        {"messages": [{**turn, "chat_template": "{{ 7 * 7 }}"}]},
        {"messages": [{**turn, "role": "{{ 7 * 7 }}"}]},
    ):
        with pytest.raises(InvalidJob, match=r"messages|chat_template"):
            GenerationJob.parse(fields, tiny_settings)


def test_a_conversation_needs_a_model_with_a_template(model: LoadedModel) -> None:
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(GenerationError, match="no_chat_template"):
        model.sequences("job", job, now_ms=0)[0]
