"""What taking an output apart costs: a token of text, of reasoning, and of a call of a tool.

    python -m benchmarks.parsers [--write]

A token is a piece of four characters, each written by itself as a worker does for each step. Figures are of
the fastest of some rounds, in this process's own time.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time

from benchmarks.harness import Benchmark, main, timed_s
from benchmarks.report import Row, Table
from llama_herd.model.parsers.output_formats import OutputFormats
from llama_herd.model.parsers.output_parser import OutputParser

TOKEN_CHARS = 4
FORMATS = OutputFormats.from_templates({}, "hermes", "think")


@dataclass(frozen=True)
class Plan:
    num_tokens: int = 20_000
    rounds: int = 7


def measure(plan: Plan) -> Iterator[Table]:
    rows: list[Row] = []
    for name, text in _texts(plan.num_tokens * TOKEN_CHARS).items():
        pieces = [text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS)]
        seconds = min(timed_s(partial(parse, pieces), process_time) for _ in range(plan.rounds))
        rows.append({"output": name, "us a token": 1e6 * seconds / len(pieces)})
    yield Table(rows)


def _texts(num_chars: int) -> dict[str, str]:
    rng = random.Random(0)
    words = " ".join("".join(rng.choices("etaoinshr", k=rng.randint(2, 9))) for _ in range(num_chars // 4))
    words = words[:num_chars]
    numbers = json.dumps({"a": list(range(num_chars // 7))})
    return {
        "text": words,
        "text with a < in each token": "a <b" * (num_chars // 4),
        "reasoning": f"<think>{words}",
        "a call with one long text": _call(json.dumps({"a": words})),
        "a call with numbers": _call(numbers),
        "short calls": _call('{"city": "Paris", "days": 3}') * (num_chars // 90),
    }


def _call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


def parse(pieces: Sequence[str]) -> None:
    parser = OutputParser(FORMATS, ["f"])
    for piece in pieces:
        parser.write(piece)
    parser.finish()


BENCHMARK = Benchmark("parsers", __doc__, Plan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
