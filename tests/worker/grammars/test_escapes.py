"""The law of schemas: what ends by itself is valid, whatever the model would rather write."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.files.open_model import read_tokens
from llama_herd.model.text.helper import Helper
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from tests.examples import seeds
from tests.worker.grammars.test_grammars import write_vocabulary
from tests.worker.grammars.verdicts import problem
from tests.worker.grammars.walks import Walker, words_of
from tests.worker.grammars.wild_schemas import wild_schema

#: Walks of each schema.
NUM_WALKS = 15


class Law:
    """Walks random schemas over one vocabulary, and gathers what is wrong."""

    def __init__(self, path: Path) -> None:
        tokenizer, _ = read_tokens(path)
        self.grammars = Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS)])
        self._walker = Walker(tokenizer)
        self.num_crashes = 0

    def walk(self, rng: random.Random, num_ended: int) -> list[str]:
        """What is wrong in so many walks that ended by themselves."""
        problems, num_taken, num_schemas = list[str](), 0, 0
        while num_ended > 0:
            schema, num_schemas = wild_schema(rng), num_schemas + 1
            made = self._constraints(json.dumps(schema))
            num_taken += bool(made)
            for constraint in made:
                text = self._walker.walk(constraint, words_of(schema, rng), rng)
                if text is not None:
                    num_ended -= 1
                    found = problem(schema, text)
                    problems += [f"{found}: {text} by {json.dumps(schema)}"] if found else []
        assert not self.num_crashes
        assert num_taken > num_schemas / 4, "most are refused: the schemas are too wild"
        return problems

    def _constraints(self, schema: str) -> list[Constraint]:
        """Constraints by a schema; none where it is refused."""
        try:
            return self.grammars.constraints(OutputForm("json", schema, "the.field"), NUM_WALKS)
        except InvalidJob:
            return []
        except GenerationError as error:
            self.num_crashes += "ended its process" in error.message
            return []


@pytest.fixture(scope="module")
def law() -> Iterator[Law]:
    made = Law(BUNDLED_MODEL)
    with closing(made.grammars):
        yield made


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, 1))
def test_what_ends_by_itself_is_valid(law: Law, seed: int) -> None:
    assert not law.walk(random.Random(seed), 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_what_ends_by_itself_is_valid_in_many_walks(law: Law, seed: int) -> None:
    assert not law.walk(random.Random(f"many {seed}"), 1000)


@pytest.mark.slow
def test_what_ends_by_itself_is_valid_with_a_large_vocabulary(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocabulary.gguf", 32_000)
    large = Law(tmp_path / "vocabulary.gguf")
    with closing(large.grammars):
        assert not large.walk(random.Random("large"), 10_000)
