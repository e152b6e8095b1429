"""Measures the bundled model on held-out prompts: `python -m training.evaluate`.

Exit code 1 when a goal is missed.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from training import bundle
from training.corpus import NUM_DOCUMENTS, SEED, held_out_documents, training_documents
from training.decoder import Completion, Decoder
from training.grammar import NEXT_TURN, agrees, follows

NUM_PROMPTS = 50
MIN_FOLLOWING_SHARE = 0.95
MIN_DIFFERENT = 45


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

    def __str__(self) -> str:
        sign, verdict = "<=" if self.at_most else ">=", "ok" if self.is_met else "MISSED"
        return f"{self.name:<45}{self.figure:>7.4g}  {sign} {self.limit:<5g}  {verdict}"


def follows_grammar(completion: Completion) -> bool:
    """Whether the grammar makes prompt and completion together, to the end."""
    return completion.ended and follows(completion.document)


def agrees_throughout(completion: Completion) -> bool:
    """Whether besides every name, thing and place is said again as it was said first."""
    return completion.ended and agrees(completion.document)


def trained_texts(num_documents: int) -> Iterator[str]:
    """Every text the model was trained on, each turn of a chat by itself."""
    for document in itertools.islice(training_documents(SEED), num_documents):
        yield from document.text.split(NEXT_TURN)


def goals(completions: Sequence[Completion], trained: Iterable[str]) -> list[Goal]:
    """What the bundled model has to reach."""
    num_following = sum(map(follows_grammar, completions))
    num_different = len({completion.text for completion in completions})
    documents = {completion.document for completion in completions}
    num_known = sum(text in documents for text in trained)
    return [
        Goal("follow the grammar, share", num_following / len(completions), MIN_FOLLOWING_SHARE),
        Goal("different completions", num_different, MIN_DIFFERENT),
        Goal("completions that stand in the training text", num_known, 0, at_most=True),
    ]


def print_table(reached: Sequence[Goal], completions: Sequence[Completion]) -> None:
    for goal in reached:
        print(goal)
    lengths = [completion.num_tokens for completion in completions]
    spread = f"{min(lengths)}, {statistics.median(lengths):g}, {max(lengths)}"
    share = sum(map(agrees_throughout, completions)) / len(completions)
    print(f"{'and say every word again as it was, share':<45}{share:>7.4g}")
    print(f"{'tokens a completion: least, median, most':<45}{spread}")
    for completion in completions:
        if not follows_grammar(completion):
            print(f"does not follow: {completion.prompt!r} -> {completion.text!r}")


def print_json(reached: Sequence[Goal], completions: Sequence[Completion]) -> None:
    report = {
        "goals": [asdict(goal) | {"is_met": goal.is_met} for goal in reached],
        "completions": [
            asdict(one) | {"follows_grammar": follows_grammar(one), "agrees": agrees_throughout(one)}
            for one in completions
        ],
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=bundle.PATH)
    parser.add_argument("--json", action="store_true", help="print goals and completions as JSON")
    arguments = parser.parse_args()
    prompts = [document.prompt for document in held_out_documents(SEED + 1, NUM_PROMPTS)]
    completions = Decoder(arguments.model).complete(prompts)
    reached = goals(completions, trained_texts(NUM_DOCUMENTS))
    (print_json if arguments.json else print_table)(reached, completions)
    return 0 if all(goal.is_met for goal in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
