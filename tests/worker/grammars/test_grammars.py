"""Laws of forms: an answer that ends by itself has its form, and a crash changes nothing of that."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator

from benchmarks.vocabularies import add_byte_pairs
from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.open_model import read_tokens
from llama_herd.model.text.helper import Helper
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.engine.interface import NewTokens
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.rules import masks_of, unpacked, unpacked_there
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.examples import seeds
from tests.tiny import write_tiny_gguf
from tests.worker.engine_run import run
from tests.worker.grammars.random_schemas import random_schema

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "size": {"type": ["integer", "null"], "minimum": -5, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "é😀", 'b"\\']}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "boolean"}, "l": {"$ref": "#/$defs/node"}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
FORMS: dict[str, OutputForm] = {
    "record": OutputForm("json", json.dumps(RECORD), "f"),
    "tree": OutputForm("json", json.dumps(TREE), "f"),
    "number": OutputForm("json", '{"type": "number"}', "f"),
    "regex": OutputForm("regex", r"[a-c]{2,9}-\d\d(😀|é)", "f"),
    "choice": OutputForm("choice", '[" yes", "no", "never 😀"]', "f"),
    "lark": OutputForm("grammar", 'start: item ("," item){0,4}\nitem: /[a-z]{1,5}/', "f"),
    "gbnf": OutputForm("grammar", 'root ::= "<" [a-z]+ ">" root?', "f"),
}


def has_form(form: OutputForm, text: str) -> bool:
    match form.kind:
        case "json":
            return bool(Draft202012Validator(json.loads(form.text)).is_valid(json.loads(text)))
        case "choice":
            return text in json.loads(form.text)
        case "regex":
            return re.fullmatch(form.text, text) is not None
    patterns = {FORMS["lark"].text: r"[a-z]{1,5}(,[a-z]{1,5}){0,4}", FORMS["gbnf"].text: "(<[a-z]+>)+"}
    return re.fullmatch(patterns[form.text], text) is not None


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = LoadedModel.load(settings(), "cpu")
    yield loaded
    loaded.close()


def settings() -> WorkerSettings:
    return WorkerSettings(model=BUNDLED_MODEL, slots=16, kv_cache_tokens=8192, dtype="float32")


def asked(form: OutputForm) -> dict[str, Any]:
    text: Any = json.loads(form.text) if form.kind in ("json", "choice") else form.text
    return {form.kind: text}


def sequences(
    model: LoadedModel, form: OutputForm, seed: int, job_id: str = "a", **sampling: Any
) -> list[Sequence]:
    params = SamplingParams.model_validate({"max_tokens": 120, "seed": seed, **sampling})
    job = GenerationJob(prompt="Once upon a time", structured_outputs=asked(form), sampling=params)
    return model.maker.sequences(job_id, job, now_ms=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_an_answer_that_ends_by_itself_has_its_form(
    model: LoadedModel, temperature: float, seed: int
) -> None:
    jobs = {f"{name}-{number}": FORMS[name] for name in FORMS for number in range(3 if temperature else 1)}
    made = [
        one
        for number, (job_id, form) in enumerate(jobs.items())
        for one in sequences(model, form, 1000 * seed + number, job_id, temperature=temperature)
    ]
    sink = run(model, settings(), made)
    texts = dict.fromkeys(jobs, "")
    for output in sink:
        if isinstance(output, NewTokens):
            texts[output.sequence.job_id] += output.text
    ended = [job_id for job_id in jobs if sink.ends[job_id] == ["stop"]]
    assert not [texts[job_id] for job_id in ended if not has_form(jobs[job_id], texts[job_id])]
    assert all(sink.ends[job_id] == ["length"] for job_id in jobs if job_id not in ended)
    assert len(ended) > len(jobs) / 3


@pytest.mark.long
@pytest.mark.parametrize("stop", ["end", "id"])
def test_a_form_ends_before_min_tokens_only_where_nothing_else_may_follow(
    model: LoadedModel, stop: str
) -> None:
    """A logit bias makes the model want an end at once."""
    letters = [token_id for token_id, piece in enumerate(model.tokenizer.pieces) if piece == b"b"]
    stops = letters if stop == "id" else [*model.tokenizer.eos_ids]
    wish: dict[str, Any] = {"min_tokens": 4, "temperature": 0, "stop_token_ids": stops}
    wish["logit_bias"] = dict.fromkeys(stops, 100)
    forms = {"open": OutputForm("regex", "[ab]*", "f"), "closed": OutputForm("regex", "b", "f")}
    made = {name: sequences(model, form, 0, name, **wish)[0] for name, form in forms.items()}
    run(model, settings(), [*made.values()])
    assert [token_id in stops for token_id in made["open"].ids] == [False] * 4 + [True]
    assert (len(made["closed"].ids), made["closed"].finish_reason) == (1, "stop")


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, 50))
def test_answers_of_random_schemas_validate(model: LoadedModel, seed: int) -> None:
    rng = random.Random(seed)
    forms = {str(number): OutputForm("json", json.dumps(random_schema(rng)), "f") for number in range(20)}
    made = [
        one
        for job_id, form in forms.items()
        for one in sequences(
            model, form, seed, job_id, temperature=rng.choice([0.0, 1.0, 2.0]), max_tokens=200
        )
    ]
    sink = run(model, settings(), made)
    texts = dict.fromkeys(forms, "")
    for output in sink:
        if isinstance(output, NewTokens):
            texts[output.sequence.job_id] += output.text
    ended = [job_id for job_id in forms if sink.ends.get(job_id, ["stop"]) == ["stop"]]
    assert all(ends in (["stop"], ["length"]) for ends in sink.ends.values())
    wrong = {forms[one].text: texts[one] for one in ended if not has_form(forms[one], texts[one])}
    assert not wrong
    assert len(ended) > len(forms) / 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GGUFModel.open(BUNDLED_MODEL) as file:
        return file.read_tokenizer()


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    made = Grammars(tokenizer, 2, [Helper(JUDGE, JUDGE_LIMITS)])
    yield made
    made.close()


def allowed(constraint: Constraint) -> list[int]:
    (mask,) = masks_of([constraint])
    return [int(one) for one in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


@pytest.fixture(scope="module")
def judge() -> Iterator[Helper]:
    """Of several vocabularies: a process takes longer to start than most forms to judge."""
    judge = Helper(JUDGE, JUDGE_LIMITS)
    yield judge
    judge.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("name", FORMS)
def test_after_each_token_a_new_worker_lets_the_same_tokens_follow(
    grammars: Grammars, tokenizer: Tokenizer, judge: Helper, name: str, seed: int
) -> None:
    """Also where a crash cuts an emoji inside its bytes."""
    rng, elsewhere = random.Random(f"{name} {seed}"), Grammars(tokenizer, 1, [judge])
    (running,) = grammars.constraints(FORMS[name], 1)
    ids: list[int] = []
    while not running.is_over and len(ids) < 60:
        after_crash = elsewhere.constraints(FORMS[name], 1)[0]
        for token_id in ids:
            after_crash.add(token_id)
        assert (masks_of([after_crash]) == masks_of([running])).all()
        ids.append(rng.choice(allowed(running)))
        running.add(ids[-1])
    assert ids


def write_vocabulary(path: Path, vocab_size: int) -> None:
    """A file of so many tokens, without weights."""
    writer = gguf.GGUFWriter(path, "llama")
    add_byte_pairs(writer, vocab_size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("vocab_size", [319, 320, 321, 351, 352, 353])
def test_a_vocabulary_may_have_any_number_of_tokens(judge: Helper, vocab_size: int, tmp_path: Path) -> None:
    """Masks are words of 64 bits, of which llguidance fills those of 32 bits that it needs."""
    path = tmp_path / "vocabulary.gguf"
    write_vocabulary(path, vocab_size)
    tokenizer, _ = read_tokens(path)
    any_size = Grammars(tokenizer, 1, [judge])
    last = tokenizer.pieces[-1].decode()
    asked = [OutputForm("choice", json.dumps(["a", last]), "f"), OutputForm("regex", "a", "f")] * 2
    made = [any_size.constraints(form, 1)[0] for form in asked]
    masks = torch.from_numpy(masks_of(made))
    flags = unpacked(masks, vocab_size)
    assert flags.equal(unpacked_there(masks, vocab_size))
    assert flags.shape == (4, vocab_size)
    assert flags.sum(-1).tolist() == [len({"a", last[:1], last}), 1] * 2


@pytest.mark.long
def test_the_figures_count_what_was_asked_refused_and_built(tokenizer: Tokenizer) -> None:
    counted = Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS)])
    try:
        for _ in range(3):
            counted.constraints(FORMS["regex"], 2)
        with pytest.raises(InvalidJob):
            counted.constraints(OutputForm("regex", "(", "f"), 1)
        figures = counted.figures
        assert (figures.num_asked, figures.num_refused, sum(figures.build_s.counts)) == (4, 1, 2)
    finally:
        counted.close()


@pytest.mark.long
def test_outputs_of_one_job_go_their_own_ways(model: LoadedModel) -> None:
    made = sequences(model, FORMS["record"], 1, n=3, temperature=1.5)
    sink = run(model, settings(), made)
    texts = ["", "", ""]
    for output in sink:
        if isinstance(output, NewTokens):
            texts[output.sequence.choice] += output.text
    assert len(set(texts)) == 3
    assert all(text.startswith("{") for text in texts)


def test_a_recorded_output_of_another_form_is_not_continued(model: LoadedModel, tokenizer: Tokenizer) -> None:
    (sequence,) = sequences(model, FORMS["record"], 1)
    with pytest.raises(GenerationError) as caught:
        sequence.replay(tokenizer.encode("no object", add_bos=False))
    assert caught.value.code == ErrorCode.GRAMMAR_MISMATCH
    assert "object" not in caught.value.message


def test_a_leading_space_belongs_to_the_answer_of_a_chat(model: LoadedModel) -> None:
    (constraint,) = model.maker.grammars.constraints(FORMS["choice"], 1)
    assert constraint is not None
    assert {model.tokenizer.pieces[one][:1] for one in allowed(constraint)} == {b" ", b"n"}


@pytest.mark.long
def test_a_model_without_an_end_ends_where_nothing_may_follow(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "endless.gguf", eos=False)
    endless = LoadedModel.load(WorkerSettings(model=path, kv_cache_tokens=4096), "cpu")
    made = [
        *sequences(endless, FORMS["choice"], 1, "choice", temperature=2.0),
        *sequences(endless, OutputForm("regex", "[ab]+", "f"), 2, "regex", temperature=2.0),
    ]
    try:
        assert run(endless, settings(), made).ends == {"choice": ["stop"], "regex": ["length"]}
    finally:
        endless.close()


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        (
            "json",
            '{"properties": {"a": {"items": [{"not": {"type": "null"}}]}}}',
            "properties.a.items.0.not is not supported",
        ),
        ("json", '{"properties": {"s e": {"not": {"const": 1}}}}', "properties.?.not is not supported"),
        (
            "json",
            '{"properties": {"not": {"not": {}}, "a": {"not": {"const": 1}}}}',
            "properties.a.not is not supported",
        ),
        ("json", '{"type": "string", "format": "regex", "title": "CANARY"}', "format is not supported"),
        ("json", '{"oneOf": [{"type": "string"}, {"minLength": 1}]}', "oneOf is not supported"),
        (
            "json",
            '{"properties": {"a": {"properties": {"b": {}}, "maxProperties": 1}}}',
            "properties.a.maxProperties is not supported where names may be left out. Fix: require all",
        ),
        (
            "json",
            '{"items": {"patternProperties": {"CANARY": {"type": "null"}, "A": {"type": "string"}}}}',
            "items.patternProperties is not supported: patternProperty regexes",
        ),
        ("json", '{"x-guidance": {"lenient": true}, "not": {"const": 1}}', "not is not supported"),
        ("json", '{"type": "CANARY"}', "type must be one or a list of null, boolean"),
        ("json", '{"items": "CANARY"}', "items must be an object, true or false"),
        ("json", '"CANARY"', "the schema must be an object, true or false"),
        ("json", '{"not": {}}', "the schema lets nothing through"),
        (
            "json",
            '{"properties": {"a": {"unevaluatedProperties": false}}}',
            "supported. Fix: one object with",
        ),
        ("json", '{"minLength": 2, "maxLength": 1, "type": "string"}', "(2) is greater than maxLength (1)"),
        (
            "json",
            '{"type": "object", "required": ["\'CANARY"], "additionalProperties": false}',
            "the schema lets nothing through: required property ... is unsatisfiable",
        ),
        ("json", '{"type": "string", "pattern": "^CANARY: $", "maxLength": 2}', "no text fits its patterns"),
        (
            "json",
            '{"const": "CANARY\\"\'", "minLength": 20}',
            "Constant ... doesn't match length constraints",
        ),
        (
            "json",
            '{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}}}',
            "the schema lets nothing through: incompatible types",
        ),
        (
            "json",
            '{"items": {"allOf": [{"minItems": 1}, {"$ref": "#"}]}}',
            "the schema has a $ref that leads back to itself beside other keywords. Fix: a $ref alone",
        ),
        (
            "json",
            json.dumps({"allOf": [{"pattern": one} for one in ("^a.*", "b", "^.{10,}c", ".*d$", "CANARY")]}),
            "the schema asks for too much of one text",
        ),
        ("json", '{"$ref": "http://CANARY/x"}', "$ref is not supported"),
        ("json", '{"$ref": "#/CANARY"}', "$ref is not supported"),
        ("regex", "CANARY(", "unclosed group"),
        ("regex", r"(CANARY+)\1", "backreferences are not supported"),
        ("grammar", "start: CANARY", "unknown name"),
        ("grammar", 'root ::= "CANARY', "Unexpected end of input"),
    ],
)
def test_what_cannot_be_followed_is_refused_where_it_stands(
    grammars: Grammars, kind: Any, text: str, complaint: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        grammars.constraints(OutputForm(kind, text, "response_format.json_schema.schema"), 1)
    (error,) = caught.value.fields
    assert error.field == "response_format.json_schema.schema"
    assert complaint in error.message
    assert "CANARY" not in error.message
    assert "\n" not in error.message


HEAVY = "(((a{50,100}){50,100}){50,100}){50,100}"
MANY_RULES = "\n".join(f'r{one}: "a"~0..200 "{one}"' for one in range(3000))
MANY_OBJECTS = [
    {"type": "object", "properties": {f"k{one}": {"type": "string", "pattern": f".*{one}.*"}}}
    for one in range(600)
]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("regex", HEAVY, id="nested counts"),
        pytest.param("json", json.dumps({"type": "string", "pattern": f"^{HEAVY}$"}), id="in a pattern"),
        pytest.param("json", json.dumps({"anyOf": MANY_OBJECTS}), id="hundreds of objects"),
        pytest.param(
            "grammar",
            f"start: {' | '.join(f'r{one}' for one in range(3000))}\n{MANY_RULES}",
            id="thousands of rules",
        ),
    ],
)
def test_what_takes_too_much_for_a_token_is_refused_before_any(
    grammars: Grammars, kind: Any, text: str
) -> None:
    with pytest.raises(GenerationError) as caught:
        grammars.constraints(OutputForm(kind, text, "f"), 1)
    assert caught.value.code == ErrorCode.GRAMMAR_TOO_COMPLEX


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("regex", "(a|b)*a(a|b){40}", id="states"),
        pytest.param("regex", ".*a.{300}b.*c.{200}", id="far apart"),
        pytest.param("regex", "(a+)+b", id="backtracking"),
        pytest.param("choice", json.dumps([f"{one:06}" for one in range(20_000)]), id="long choice"),
        pytest.param("grammar", 'start: s\ns: s s s | s s | "a"?', id="ambiguous"),
        pytest.param("grammar", 'start: a\na: "(" a ")" | a a | "x"', id="recursive"),
        pytest.param("json", '{"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]}', id="itself"),
        pytest.param("json", '{"type": "string", "pattern": "^(.*a){30}.{100}$"}', id="pattern"),
        pytest.param("json", '{"type": "array", "minItems": 100000}', id="items"),
    ],
)
def test_what_looks_like_much_is_followed(grammars: Grammars, kind: Any, text: str) -> None:
    (constraint,) = grammars.constraints(OutputForm(kind, text, "f"), 1)
    rng = random.Random(0)
    for _ in range(100):
        if constraint.is_over:
            break
        constraint.add(rng.choice(allowed(constraint)))


@pytest.mark.long
def test_a_form_that_becomes_too_much_while_it_runs_ends_its_job_alone(model: LoadedModel) -> None:
    late = OutputForm("regex", "-{64}" + HEAVY.replace("50", "1"), "f")
    only_a = {str(model.tokenizer.pieces.index(b"a")): 100}
    mates = {name: FORMS[name] for name in ("record", "tree")}
    made = [one for name, form in mates.items() for one in sequences(model, form, 1, name)]
    together = run(model, settings(), [*sequences(model, late, 1, "late", logit_bias=only_a), *made])
    assert together.ends["late"] == ["error"]
    for name, form in mates.items():
        assert together.ids[name] == run(model, settings(), sequences(model, form, 1, name)).ids[name]


def test_a_dead_end_before_the_first_token_is_refused(grammars: Grammars) -> None:
    with pytest.raises(InvalidJob, match="nothing may follow"):
        grammars.constraints(OutputForm("grammar", 'start: "a" T\nT: /b/ & /[^b]/', "f"), 1)


def test_a_dead_end_on_the_way_is_told_as_such(grammars: Grammars) -> None:
    late = OutputForm("grammar", 'start: "-"{64} T\nT: /b/ & /[^b]/', "f")
    (constraint,) = grammars.constraints(late, 1)
    with pytest.raises(GenerationError) as caught:
        follow(constraint, 65)
    assert caught.value.code == ErrorCode.GRAMMAR_DEAD_END


def follow(constraint: Constraint, num_tokens: int) -> None:
    for _ in range(num_tokens):
        tokens = allowed(constraint)
        constraint.check()
        constraint.add(tokens[0])


def test_any_text_may_be_a_choice(grammars: Grammars, tokenizer: Tokenizer) -> None:
    texts = ["a.*b", "\\x{41}", "[é]\n", "😀(", "a|", "<%>", "\t #&~-"]
    form = OutputForm("choice", json.dumps(texts), "f")
    for text in texts:
        (constraint,) = grammars.constraints(form, 1)
        for byte in text.encode():
            constraint.add(tokenizer.pieces.index(bytes([byte])))
        assert constraint.matcher.is_accepting()
