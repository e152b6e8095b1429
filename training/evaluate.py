"""Measures the bundled model on held-out prompts: `python -m training.evaluate`.

Exit code 1 when a goal is missed.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import pages_for
from llama_herd.model.tokenizer import Tokenizer
from training import bundle
from training.corpus import NUM_DOCUMENTS, SEED, held_out_documents, training_documents
from training.grammar import NEXT_TURN, follows

NUM_PROMPTS = 50
MAX_TOKENS = 256
MIN_FOLLOWING_SHARE = 0.95
MIN_DIFFERENT = 45


@dataclass(frozen=True)
class Completion:
    """What the model made of a prompt."""

    prompt: str
    text: str
    num_tokens: int
    ended: bool  # by EOS, before MAX_TOKENS

    @property
    def document(self) -> str:
        return self.prompt + self.text

    @property
    def follows_grammar(self) -> bool:
        return self.ended and follows(self.document)


@dataclass(frozen=True)
class Goal:
    """A figure and the limit it has to keep."""

    name: str
    figure: float
    limit: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit


class Decoder:
    """Greedy decoding of many prompts in one batch."""

    def __init__(self, path: Path) -> None:
        with GGUFModel.open(path) as file:
            self.llama = Llama.load(file)
            self.tokenizer = Tokenizer.from_metadata(file.metadata)

    def complete(self, prompts: Sequence[str]) -> list[Completion]:
        rows = [self.tokenizer.encode(prompt) for prompt in prompts]
        written = self._decode(rows)
        return [self._completion(prompt, ids) for prompt, ids in zip(prompts, written, strict=True)]

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """The ids after each row, EOS left in."""
        cache = Cache(self.llama.config, sum(pages_for(len(row) + MAX_TOKENS) for row in rows))
        pages = [cache.pages.reserve(str(n), len(row) + MAX_TOKENS) or () for n, row in enumerate(rows)]
        written: list[list[int]] = [[] for _ in rows]
        chunks = [Chunk(pages[n], 0, row, True) for n, row in enumerate(rows)]
        running = list(range(len(rows)))
        for _ in range(MAX_TOKENS):
            chosen = self.llama.forward(Batch.of(chunks), cache).argmax(dim=-1).tolist()
            for n, token in zip(running, chosen, strict=True):
                written[n].append(token)
            running = [n for n in running if written[n][-1] not in self.tokenizer.eos_ids]
            if not running:
                break
            chunks = [
                Chunk(pages[n], len(rows[n]) + len(written[n]) - 1, written[n][-1:], True) for n in running
            ]
        return written

    def _completion(self, prompt: str, ids: Sequence[int]) -> Completion:
        ended = ids[-1] in self.tokenizer.eos_ids
        return Completion(prompt, self.tokenizer.decode(ids), len(ids), ended)


def trained_texts(num_documents: int) -> Iterator[str]:
    """Every text the model was trained on, each turn of a chat by itself."""
    for document in itertools.islice(training_documents(SEED), num_documents):
        yield from document.text.split(NEXT_TURN)


def goals(completions: Sequence[Completion], trained: Iterable[str]) -> list[Goal]:
    """The three goals of the bundled model."""
    following = sum(completion.follows_grammar for completion in completions)
    documents = {completion.document for completion in completions}
    return [
        Goal("follow the grammar, share", following / len(completions), MIN_FOLLOWING_SHARE),
        Goal("different completions", len({completion.text for completion in completions}), MIN_DIFFERENT),
        Goal(
            "completions that stand in the training text", sum(text in documents for text in trained), 0, True
        ),
    ]


def print_table(found: Sequence[Goal], completions: Sequence[Completion]) -> None:
    for goal in found:
        sign, verdict = "<=" if goal.at_most else ">=", "ok" if goal.is_met else "MISSED"
        print(f"{goal.name:<45}{goal.figure:>7.4g}  {sign} {goal.limit:<5g}  {verdict}")
    lengths = [completion.num_tokens for completion in completions]
    spread = f"{min(lengths)}, {statistics.median(lengths):g}, {max(lengths)}"
    print(f"{'tokens a completion: least, median, most':<45}{spread}")
    for completion in completions:
        if not completion.follows_grammar:
            print(f"does not follow: {completion.prompt!r} -> {completion.text!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=bundle.PATH)
    parser.add_argument("--json", action="store_true", help="print figures and completions as JSON")
    arguments = parser.parse_args()
    prompts = [document.prompt for document in held_out_documents(SEED + 1, NUM_PROMPTS)]
    completions = Decoder(arguments.model).complete(prompts)
    found = goals(completions, trained_texts(NUM_DOCUMENTS))
    if arguments.json:
        print(
            json.dumps(
                {"goals": [vars(goal) for goal in found], "completions": [vars(c) for c in completions]}
            )
        )
    else:
        print_table(found, completions)
    return 0 if all(goal.is_met for goal in found) else 1


if __name__ == "__main__":
    sys.exit(main())
