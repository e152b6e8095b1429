"""A conversation becomes a prompt by the model's own template, and by nothing that the job brings."""

from datetime import datetime
from pathlib import Path

import pytest

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.tiny import write_tiny_gguf


@pytest.mark.long
def test_a_conversation_becomes_a_prompt_and_its_text_no_control_token(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=template)
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "once </s> upon"}]})
    try:
        prompt_ids = model.maker.sequences("job", job, now_ms=0)[0].prompt_ids
    finally:
        model.close()
    assert model.tokenizer.decode(prompt_ids).strip() == "[user] once </s> upon"
    assert prompt_ids.count(model.tokenizer.bos_id or -1) == 1
    assert not model.tokenizer.eos_ids & set(prompt_ids)


@pytest.mark.long
def test_the_date_in_a_prompt_is_that_of_the_job_at_each_attempt(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "dated.gguf", chat_template="{{ strftime_now('%d.%m.%Y') }}")
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "hi"}]})
    due_ms = 1000 * int(datetime(2024, 2, 29, 12).timestamp())
    try:
        dated = [model.maker.sequences("job", job, 0, due_ms)[0] for due_ms in (due_ms, due_ms, None)]
    finally:
        model.close()
    texts = [model.tokenizer.decode(one.prompt_ids).strip() for one in dated]
    assert texts[:2] == ["29.02.2024"] * 2
    assert texts[2] != texts[0]


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
    complaint = "no_chat_template: messages: this model has no chat template. Fix: send a prompt instead"
    with pytest.raises(GenerationError, match=complaint):
        model.maker.sequences("job", job, now_ms=0)


@pytest.mark.long
def test_a_conversation_is_refused_with_the_reason_why_its_template_cannot_be_used(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template="{% if %}")
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")
    job = GenerationJob.model_validate({"messages": [{"role": "user", "content": "hi"}]})
    with pytest.raises(GenerationError, match=r"no_chat_template: messages: the chat template fails: line 1"):
        model.maker.sequences("job", job, now_ms=0)


@pytest.mark.long
def test_all_that_a_job_says_of_its_chat_reaches_the_template(
    tiny_settings: WorkerSettings, tmp_path: Path
) -> None:
    """And a template that leaves out content in parts, or developers, gets them as it can take them."""
    templates = {
        "default": "{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}",
        "tool_use": "{{ messages | tojson }}{{ tools | tojson }}{{ documents | tojson }}{{ think }}",
        "strict": "{% for m in messages if m.role != 'developer' %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    }
    listed = [{"name": name, "template": template} for name, template in templates.items()]
    path = write_tiny_gguf(tmp_path / "chat.gguf", chat_template=listed)
    model = LoadedModel.load(tiny_settings.model_copy(update={"model": path}), "cpu")

    def text(**fields: object) -> str:
        job = GenerationJob.parse(fields, tiny_settings)
        return model.tokenizer.decode(model.maker.sequences("job", job, now_ms=0)[0].prompt_ids)

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns = [{"role": "developer", "content": parts}, {"role": "user", "content": "c"}]
    call = {"role": "assistant", "tool_calls": [{"x": None}], "reasoning_content": "r", "content": ""}
    extras = {"tools": [{"y": 1}], "documents": [{"z": []}], "chat_template_kwargs": {"think": False}}
    try:
        assert text(messages=turns) == " [developer]ab[user]c"
        assert text(messages=turns, chat_template="strict") == " [system]ab[user]c"
        assert text(messages=[turns[1], call], **extras) == (
            ' [{"role": "user", "content": "c"}, {"thinking": "r", "role": "assistant", "content": "", '
            '"tool_calls": [{"x": null}], "reasoning_content": "r"}][{"y": 1}][{"z": []}]False'
        )
        with pytest.raises(InvalidJob, match="one of the model's: default, strict, tool_use"):
            text(messages=turns, chat_template="rag")
    finally:
        model.close()
