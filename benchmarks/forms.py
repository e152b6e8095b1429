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
from collections.abc import Iterator, Sequence as Rows
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import gguf
import numpy as np
from jsonschema import Draft202012Validator

from benchmarks.harness import Benchmark, in_turns, main, percentile, timed_s
from benchmarks.random_schemas import random_schema
from benchmarks.report import ROOT, Row, Table
from benchmarks.speed.files import MEDIUM, RandomFile
from benchmarks.timed_engine import TimedEngine
from benchmarks.vocabularies import add_byte_pairs
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import read_tokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.tasks.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.masks import masks_of, unpacked
from llama_herd.worker.engine.step_output import StepOutput
from llama_herd.worker.grammars.form_judge import FormJudge
from llama_herd.worker.grammars.grammars import Grammars
from llama_herd.worker.settings import BUNDLED_MODEL

THREADS = 2
PEERS = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True)
class Plan:
    vocabularies: tuple[int, ...] = (32_000, 128_000)  # beside the bundled model's
    properties: tuple[int, ...] = (3, 30, 300)
    builds: int = 30
    rows: tuple[int, ...] = (1, 8, 32)
    masked_steps: int = 150
    decoded_steps: int = 24
    rounds: int = 5
    temperatures: tuple[float, ...] = (0.0, 1.0, 2.0)
    answers: int = 1_000


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


def _bundled() -> Tokenizer:
    with GGUFModel.open(BUNDLED_MODEL) as file:
        return file.read_tokenizer()


def _form(schema: dict[str, Any]) -> OutputForm:
    return OutputForm("json", json.dumps(schema), "f")


def builds(tokenizer: Tokenizer, plan: Plan) -> Iterator[Row]:
    """From a schema that is new to its constraint, judged in the helper and built here."""
    with closing(Grammars(tokenizer, THREADS, [FormJudge()])) as grammars:
        grammars.constraints(_form({"type": "null"}), 1)  # starts the helper and reads the vocabulary
        for num in plan.properties:
            forms = [_form(_wide_record(num, number)) for number in range(plan.builds)]
            taken_ms = [1e3 * timed_s(partial(grammars.constraints, form, 1)) for form in forms]
            yield {
                "vocabulary": tokenizer.vocab_size,
                "properties": num,
                "p50 ms": median(taken_ms),
                "p99 ms": percentile(taken_ms, 99),
                "max ms": max(taken_ms),
            }


def _wide_record(num_properties: int, number: int) -> dict[str, Any]:
    kinds = (_TEXT, _ADDRESS, {"type": "number"}, {"enum": ["a", "b"]}, {"type": "boolean"})
    return _record(**{f"{number}-{one}": kinds[one % len(kinds)] for one in range(num_properties)})


def masks(tokenizer: Tokenizer, plan: Plan) -> Iterator[Row]:
    """From ids to flags of the logits, of all rows of a step together."""
    with closing(Grammars(tokenizer, THREADS, [FormJudge()])) as grammars:
        for rows in plan.rows:
            taken_us = list(_mask_us(grammars, tokenizer.vocab_size, rows, plan.masked_steps))
            yield {
                "vocabulary": f"{tokenizer.vocab_size:,}",
                "rows": rows,
                "p50 us": median(taken_us),
                "mean us": mean(taken_us),
                "p99 us": percentile(taken_us, 99),
            }


def _mask_us(grammars: Grammars, vocab_size: int, rows: int, num_steps: int) -> Iterator[float]:
    rng, forms = random.Random(0), [_form(schema) for schema in SCHEMAS]
    running = [grammars.constraints(forms[row % len(forms)], 1)[0] for row in range(rows)]
    for _ in range(num_steps):
        started_s = perf_counter()
        flags = unpacked(masks_of(running), vocab_size)
        yield 1e6 * (perf_counter() - started_s)
        for row, allowed in enumerate(flags.numpy()):
            running[row].add(int(rng.choice(np.flatnonzero(allowed))))
            if running[row].is_over:
                running[row] = grammars.constraints(forms[row % len(forms)], 1)[0]


def steps(plan: Plan) -> Iterator[Row]:
    """A step of a large file with so many rows, without forms and with; ours and llama.cpp's."""
    with TemporaryDirectory() as folder:
        path = RandomFile("1.1B", MEDIUM, "Q4_0").write(Path(folder))
        fields = {"model": path, "threads": THREADS, "slots": max(plan.rows), "context_tokens": 1_024}
        with closing(TimedEngine.load(**fields)) as model:
            for rows in plan.rows:
                ways = {
                    name: partial(_steps_ms, model, rows, every, plan.decoded_steps)
                    for name, every in {"no form": 0, "half": 2, "all": 1}.items()
                }
                taken = in_turns(ways, plan.rounds)
                yield _step_row(
                    "llama-herd", rows, {name: [*chain(*rounds)] for name, rounds in taken.items()}
                )
        if PEERS.exists():
            yield from _peer_steps(path, plan)


def _step_row(engine: str, rows: int, taken_ms: dict[str, list[float]]) -> Row:
    half, ratio = taken_ms.get("half", "-"), median(taken_ms["all"]) / median(taken_ms["no form"])
    return {"engine": engine, "rows": rows, **taken_ms, "half": half, "all / none": ratio}


def _steps_ms(model: TimedEngine, rows: int, every: int, num_steps: int) -> list[float]:
    engine = model.other()
    sampling = SamplingParams(max_tokens=num_steps + 4, temperature=1.0, ignore_eos=True)
    for row in range(rows):
        form = {"structured_outputs": {"json": LONG}} if every and row % every == 0 else {}
        engine.submit(f"{engine.trace.started_s}-{row}", range(10, 74), sampling, **form)
    taken_ms = list[float]()
    while engine.engine.has_work:
        taken_ms.append(1e3 * engine.step())
    return taken_ms[2:-2]


def _peer_steps(path: Path, plan: Plan) -> Iterator[Row]:
    request = {"rows": plan.rows, "threads": THREADS, "steps": plan.decoded_steps, "rounds": plan.rounds}
    asked = json.dumps({**request, "schema": LONG})
    command = [str(PEERS), "-m", "benchmarks.forms_peer", str(path), asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for rows, taken_ms in json.loads(done.stdout.splitlines()[-1]):
        yield _step_row("llama.cpp", rows, taken_ms)


class Answering(TimedEngine):
    """Keeps the texts, and how each ended."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.texts: dict[str, str] = {}
        self.ends: dict[str, str] = {}

    def note(self, outputs: list[StepOutput]) -> None:
        for one in outputs:
            job_id = one.sequence.job_id
            self.texts[job_id] = self.texts.get(job_id, "") + one.text
            if one.finish_reason is not None:
                self.ends[job_id] = one.finish_reason


def answers(plan: Plan) -> Iterator[Row]:
    """How the bundled model's answers by random schemas end, and how many are valid."""
    fields = {"model": BUNDLED_MODEL, "threads": THREADS, "slots": 32, "kv_cache_tokens": 16_384}
    with closing(Answering.load(**fields)) as model:
        for temperature in plan.temperatures:
            rng, engine = random.Random(0), model.other()
            schemas = {str(number): random_schema(rng) for number in range(plan.answers)}
            sampling = SamplingParams(max_tokens=200, temperature=temperature)
            for job_id, schema in schemas.items():
                engine.submit(job_id, "Once upon a time", sampling, structured_outputs={"json": schema})
            engine.run()
            ended = [job_id for job_id, reason in engine.ends.items() if reason == "stop"]
            yield {
                "temperature": temperature,
                "answers": len(schemas),
                "ended by themselves": len(ended),
                "of these valid": sum(_is_valid(schemas[one], engine.texts[one]) for one in ended),
            }


def _is_valid(schema: dict[str, Any], text: str) -> bool:
    return bool(Draft202012Validator(schema).is_valid(json.loads(text)))


def measure(plan: Plan) -> Iterator[Table]:
    tokenizers = [_bundled(), *map(made_up, plan.vocabularies)]
    built: Rows[Row] = [row for one in tokenizers for row in builds(one, plan)]
    yield Table(built, f"From a new schema to its constraint, {plan.builds} schemas each")
    masked = [row for one in tokenizers for row in masks(one, plan)]
    yield Table(masked, "The masks of a step, all rows together")
    yield Table(list(steps(plan)), "A step of 1.1B Q4_0, ms, by the rows that have a form")
    title = "Answers of the bundled model by random schemas; all others met `max_tokens` of 200"
    yield Table(list(answers(plan)), title)


BENCHMARK = Benchmark("forms", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
