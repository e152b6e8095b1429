"""Batches made to stand in the way: the herd serves others all the time, and each ends with a reason."""

import json
from pathlib import Path

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.feeder.batch_input import max_line_bytes
from llama_herd.tasks.settings import Settings
from tests.batch_api import COMPLETIONS, ENDED, rows
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.killing import deterministic_workers
from tests.killed_gateways import gateways
from tests.tasks.batch.test_row_bounds import FILLINGS, MARK, request
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.fault, pytest.mark.timeout(400)]

NUM_BATCHES, NUM_LINES, NUM_KILLS = 8, 8, 3
#: As long as a line may be that is read.
LINE_BYTES = max_line_bytes(Settings.read().max_prompt_bytes) - 400


def poison(kind: str) -> list[str]:
    """The lines of a batch, each with as much of a kind as a line has room for."""
    before, after = json.dumps(request(COMPLETIONS, prompt=MARK)).split(json.dumps(MARK))
    line = before + FILLINGS[kind](LINE_BYTES) + after
    return [line.replace('"a"', f'"a{number}"', 1) for number in range(NUM_LINES)]


def test_eight_poison_batches_hold_up_nobody(
    redis_url: str, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", eos=False, context_length=256)
    kinds = [*FILLINGS][:NUM_BATCHES]
    with deterministic_workers(1, redis_server, model, tmp_path), gateways(redis_url, tmp_path) as found:
        poisoned = [found.api.begin(poison(kind)) for kind in kinds]
        good = found.api.begin(rows(20))
        for _ in range(NUM_KILLS):
            answer = found.api.ask("POST", COMPLETIONS, {"prompt": "a tale", "max_tokens": 2})
            assert answer.status == 200
            found.kill()
        found.check_whole(good, [row["custom_id"] for row in rows(20)])
        wait_until(lambda: all(found.api.show(one)["status"] in ENDED for one in poisoned), "they end", 300)
        for batch in map(found.api.show, poisoned):
            assert batch["status"] == "failed"
            assert batch["errors"]["data"][0]["message"]
            assert batch["errors"]["data"][0]["line"]
