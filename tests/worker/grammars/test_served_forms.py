"""Whole answers of a server are held to what a job asks for, however the server spells them."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from llama_herd.errors import FieldError, GenerationError
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.text.helper import Helper
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.structured_outputs import FormKind, OutputForm
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.grammars.served_forms import ServedForms


@pytest.fixture(scope="module")
def forms() -> Iterator[ServedForms]:
    with GGUFModel.open(BUNDLED_MODEL) as file:
        grammars = Grammars(file.read_tokenizer(), 1, [Helper(JUDGE, JUDGE_LIMITS)])
    kinds: list[FormKind] = ["json", "regex"]
    with closing(ServedForms(grammars, kinds, lambda field: FieldError(field, "cannot be kept"))) as made:
        yield made


SHARE = json.dumps({"type": "number", "minimum": 0, "maximum": 1})
WORD = json.dumps({"type": "string", "pattern": "^[a-z]+$"})
NOTE = json.dumps({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False})


@pytest.mark.parametrize(
    ("kind", "form", "answer", "follows"),
    [
        ("regex", "a*", "", True),
        ("regex", "a+", "", False),
        ("json", SHARE, "0.00005", True),
        ("json", SHARE, "5E-5", True),
        ("json", SHARE, "1.00005", False),
        ("json", SHARE, "-5e-5", False),
        ("json", NOTE, ' {"a"\t: "5e-05 \\u00e9 \\" 5e-05"}\n', True),
        ("json", NOTE, '{"a": "\\ud83d"}', False),
        ("json", NOTE, '{"a": "\\u001b[0m \\u000A \\u007F \x7f"}', True),
        ("json", WORD, '"\\u0061b"', True),
        ("json", WORD, '"a\\u0001"', False),
        ("json", NOTE, '{"a": ""', False),
    ],
)
def test_an_answer_follows_a_form_by_its_values(
    forms: ServedForms, kind: FormKind, form: str, answer: str, follows: bool
) -> None:
    (constraint,) = forms.constraints(OutputForm(kind, form, "field"), 1)
    assert constraint is not None
    if follows:
        constraint.check_whole(answer)
        return
    with pytest.raises(GenerationError, match="does not follow"):
        constraint.check_whole(answer)
