"""What a form of outputs costs: a mask, a step with masks, and llama.cpp's grammar on the same file.

    python -m benchmarks.forms [--write]

The schemas are of the kind that services send: objects in objects, lists, enums, numbers, dates. Tokens are
drawn at random among those that may follow, so lexers meet new states all the time. Steps are those of a
1.1B file of random weights, whose rows take turns: none with a form, each second one, all. llama.cpp draws
as its own server does: the likeliest token is tried, and only if the grammar refuses it are all others.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence as Rows
from pathlib import Path
from statistics import mean, median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import gguf
import numpy as np
from jsonschema import Draft202012Validator

from benchmarks.conditions import conditions
from benchmarks.measured import ROOT, Report, Table, run_command
from benchmarks.random_schemas import random_schema
from benchmarks.speed.files import QUICK_FILES
from benchmarks.vocabularies import add_byte_pairs
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import read_tokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.tasks.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.masks import masks_of, unpacked
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.grammars.form_judge import FormJudge
from llama_herd.worker.grammars.grammars import Grammars
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import BUNDLED_MODEL, WorkerSettings

THREADS = 2
ROWS = (1, 8, 32)
MASKED_STEPS = 150
DECODED_STEPS = 24
ROUNDS = 5
PROPERTIES = (3, 30, 300)
BUILDS = 30
TEMPERATURES = (0.0, 1.0, 2.0)
ANSWERS = 1_000
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def _record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "maxLength": 40}
_ADDRESS = _record(street=_TEXT, city=_TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$"})
SCHEMAS: tuple[dict[str, Any], ...] = (
    _record(name=_TEXT, age={"type": "integer", "minimum": 0, "maximum": 130}, address=_ADDRESS),
    _record(items={"type": "array", "minItems": 4, "items": _record(sku=_TEXT, price={"type": "number"})}),
    _record(label={"enum": ["positive", "neutral", "negative"]}, reasons={"type": "array", "items": _TEXT}),
    _record(due={"type": "string", "format": "date-time"}, done={"type": "boolean"}, tags={"type": "array"}),
)
#: Longer than what is generated, for steps.
LONG = _record(rows={"type": "array", "minItems": 60, "items": _record(a=_TEXT, b={"type": "integer"})})


def measure() -> Report:
    return {
        "benchmark": "forms",
        "conditions": conditions(),
        "builds": list(_builds()),
        "masks": [{"vocabulary": size, "rows": rows, **one} for size, rows, one in _masks()],
        "steps": list(_steps()),
        "answers": list(_answers()),
    }


def _builds() -> Iterator[dict[str, Any]]:
    """Milliseconds from a schema that is new to its constraint, judged in the helper and built here."""
    for tokenizer in _vocabularies():
        grammars = Grammars(tokenizer, THREADS, [FormJudge()])
        try:
            grammars.constraints(_form({"type": "null"}), 1)  # starts the helper and reads the vocabulary
            for num in PROPERTIES:
                taken_ms = [1e3 * _build_s(grammars, num, number) for number in range(BUILDS)]
                yield {"vocabulary": tokenizer.vocab_size, "properties": num, **_spread(taken_ms)}
        finally:
            grammars.close()


def _build_s(grammars: Grammars, num_properties: int, number: int) -> float:
    kinds = (_TEXT, _ADDRESS, {"type": "number"}, {"enum": ["a", "b"]}, {"type": "boolean"})
    named = {f"{number}-{one}": kinds[one % len(kinds)] for one in range(num_properties)}
    form, started_s = _form(_record(**named)), perf_counter()
    grammars.constraints(form, 1)
    return perf_counter() - started_s


def _spread(values: Rows[float]) -> dict[str, float]:
    return {
        "p50": median(values),
        "p99": quantiles(values, n=100, method="inclusive")[-1],
        "max": max(values),
    }


def _vocabularies() -> Iterator[Tokenizer]:
    yield _bundled()
    yield from map(made_up, (32_000, 128_000))


def _masks() -> Iterator[tuple[int, int, dict[str, float]]]:
    """Microseconds from ids to flags of the logits, of all rows of a step together."""
    for tokenizer in _vocabularies():
        grammars = Grammars(tokenizer, THREADS, [FormJudge()])
        try:
            for rows in ROWS:
                yield tokenizer.vocab_size, rows, _mask_us(grammars, tokenizer.vocab_size, rows)
        finally:
            grammars.close()


def _bundled() -> Tokenizer:
    with GGUFModel.open(BUNDLED_MODEL) as file:
        return file.read_tokenizer()


def made_up(vocab_size: int) -> Tokenizer:
    """A vocabulary of so many tokens."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        add_byte_pairs(writer, vocab_size)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        tokenizer, _ = read_tokens(path)
        return tokenizer


def _mask_us(grammars: Grammars, vocab_size: int, rows: int) -> dict[str, float]:
    rng, forms = random.Random(0), [_form(schema) for schema in SCHEMAS]
    running = [grammars.constraints(forms[row % len(forms)], 1)[0] for row in range(rows)]
    taken_us = list[float]()
    for _ in range(MASKED_STEPS):
        started_s = perf_counter()
        flags = unpacked(masks_of(running), vocab_size)
        taken_us.append(1e6 * (perf_counter() - started_s))
        for row, allowed in enumerate(flags.numpy()):
            running[row].add(int(rng.choice(np.flatnonzero(allowed))))
            if running[row].is_over:
                running[row] = grammars.constraints(forms[row % len(forms)], 1)[0]
    return {"mean": mean(taken_us), **_spread(taken_us)}


def _form(schema: dict[str, Any]) -> OutputForm:
    return OutputForm("json", json.dumps(schema), "f")


def _steps() -> Iterator[dict[str, Any]]:
    """Milliseconds a step of a large file with so many rows, without forms and with; ours and llama.cpp's."""
    with TemporaryDirectory() as folder:
        path = QUICK_FILES[0].write(Path(folder))
        settings = WorkerSettings.read(model=path, threads=THREADS, slots=max(ROWS), context_tokens=1_024)
        model = LoadedModel.load(settings, "cpu")
        try:
            for rows in ROWS:
                yield {"engine": "llama-herd", "rows": rows, **_our_steps(model, settings, rows)}
        finally:
            model.close()
        if PEERS.exists():
            yield from _peer_steps(path)


def _our_steps(model: LoadedModel, settings: WorkerSettings, rows: int) -> dict[str, float]:
    shares = {"none_ms": 0, "half_ms": 2, "all_ms": 1}
    taken: dict[str, list[float]] = {name: [] for name in shares}
    for number in range(ROUNDS):
        for name, every in shares.items():
            has_form = [bool(every) and row % every == 0 for row in range(rows)]
            taken[name] += _run(model, settings, has_form, f"{name}-{number}")
    return {name: 1e3 * median(seconds) for name, seconds in taken.items()}


def _run(model: LoadedModel, settings: WorkerSettings, has_form: Rows[bool], name: str) -> list[float]:
    engine = model.engine(settings, lambda outputs: None)
    sampling = SamplingParams(max_tokens=DECODED_STEPS + 4, temperature=1.0, ignore_eos=True)
    for row, form in enumerate(has_form):
        asked = {"json": LONG} if form else None
        job = GenerationJob(prompt_ids=tuple(range(10, 74)), sampling=sampling, structured_outputs=asked)
        engine.submit(*model.sequences(f"{name}-{row}", job, now_ms=0))
    taken_s = list[float]()
    while engine.has_work:
        started_s = perf_counter()
        engine.step()
        taken_s.append(perf_counter() - started_s)
    return taken_s[2:-2]


def _peer_steps(path: Path) -> Iterator[dict[str, Any]]:
    request = {"rows": ROWS, "threads": THREADS, "steps": DECODED_STEPS, "rounds": ROUNDS, "schema": LONG}
    command = [str(PEERS), "-m", "benchmarks.forms_peer", str(path), json.dumps(request)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    yield from json.loads(done.stdout.splitlines()[-1])


def _answers() -> Iterator[dict[str, Any]]:
    """How the bundled model's answers by random schemas end, by temperature, and how many are valid."""
    settings = WorkerSettings.read(model=BUNDLED_MODEL, threads=THREADS, slots=32, kv_cache_tokens=16_384)
    model = LoadedModel.load(settings, "cpu")
    try:
        for temperature in TEMPERATURES:
            rng = random.Random(0)
            schemas = [random_schema(rng) for _ in range(ANSWERS)]
            yield {"temperature": temperature, **_ends(model, settings, schemas, temperature)}
    finally:
        model.close()


def _ends(
    model: LoadedModel, settings: WorkerSettings, schemas: Rows[dict[str, Any]], temperature: float
) -> dict[str, int]:
    texts, ends = dict.fromkeys(range(len(schemas)), ""), dict[int, str]()

    def note(outputs: Rows[StepOutput]) -> None:
        for one in outputs:
            number = int(one.sequence.job_id)
            texts[number] += one.text
            if one.finish_reason is not None:
                ends[number] = one.finish_reason

    engine = model.engine(settings, note)
    sampling = SamplingParams(max_tokens=200, temperature=temperature)
    for number, schema in enumerate(schemas):
        job = GenerationJob(prompt="Once upon a time", sampling=sampling, structured_outputs={"json": schema})
        engine.submit(*model.sequences(str(number), job, now_ms=0))
    while engine.has_work:
        engine.step()
    ended = [number for number, reason in ends.items() if reason == "stop"]
    valid = [one for one in ended if Draft202012Validator(schemas[one]).is_valid(json.loads(texts[one]))]
    return {"answers": len(schemas), "ended": len(ended), "valid": len(valid)}


def tables(report: Report) -> Iterator[Table]:
    yield Table(
        ("vocabulary", "properties", "p50 ms", "p99 ms", "max ms"),
        [tuple(one.values()) for one in report["builds"]],
        f"From a new schema to its constraint, {BUILDS} schemas each",
    )
    masks: list[dict[str, Any]] = report["masks"]
    yield Table(
        ("vocabulary", "rows", "p50 us", "mean us", "p99 us"),
        [
            (f"{one['vocabulary']:,}", *(one[name] for name in ("rows", "p50", "mean", "p99")))
            for one in masks
        ],
        "The masks of a step, all rows together",
    )
    yield Table(
        ("engine", "rows", "no form", "half", "all", "all / none"),
        [
            (
                one["engine"],
                one["rows"],
                one["none_ms"],
                one.get("half_ms", "-"),
                one["all_ms"],
                one["all_ms"] / one["none_ms"],
            )
            for one in report["steps"]
        ],
        "A step of 1.1B Q4_0, ms, by the rows that have a form",
    )
    yield Table(
        ("temperature", "answers", "ended by themselves", "of these valid"),
        [tuple(one.values()) for one in report["answers"]],
        "Answers of the bundled model by random schemas; all others met `max_tokens` of 200",
    )


if __name__ == "__main__":
    run_command(measure, tables, __doc__ or sys.argv[0])
