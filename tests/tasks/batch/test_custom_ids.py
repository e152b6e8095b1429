"""Which line used a name first."""

import random

import pytest

from llama_herd.tasks.batch.row_request import CustomIds


def test_it_answers_as_a_dict_does() -> None:
    draw = random.Random(0)
    ids, known = CustomIds(), dict[str, int]()
    for line in range(1, 20_001):
        name = f"c{draw.randrange(15_000)}"
        assert ids.first_line(name, line) == known.setdefault(name, line)


@pytest.mark.long
def test_a_name_takes_few_bytes() -> None:
    ids = CustomIds()
    for line in range(1, 100_001):
        ids.first_line(f"row-{line}", line)
    num_bytes = sum(len(part) * part.itemsize for part in (ids._hashes, ids._lines))
    assert num_bytes <= 36 * 100_000
