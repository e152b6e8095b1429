"""Files and batches by OpenAI's own client, unmodified."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from tests.batch_api import ENDED, lines, rows
from tests.chaos.harness.patience import wait_until
from tests.tasks.gateway.gateway_thread import GatewayThread
from tests.tasks.gateway.test_limits import made

pytestmark = [pytest.mark.redis, pytest.mark.program]


@pytest.fixture
def access(gateway: GatewayThread, redis: Redis) -> dict[str, Any]:
    return {"base_url": f"{gateway.url}/v1", "api_key": made(redis, "one"), "max_retries": 0}


def test_the_whole_way(access: dict[str, Any], stand_in: StandIn, tmp_path: Path) -> None:
    from openai import BadRequestError, ConflictError, NotFoundError, OpenAI

    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(rows(50)))
    with OpenAI(**access) as client:
        with path.open("rb") as stream:
            file = client.files.create(
                file=stream, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
            )
        assert (file.bytes, file.filename) == (path.stat().st_size, "in.jsonl")
        assert client.files.wait_for_processing(file.id).status == "processed"
        assert client.files.retrieve(file.id) == file
        assert client.files.content(file.id).read() == path.read_bytes()
        others = [client.files.create(file=(f"{n}.jsonl", b"{}\n"), purpose="batch").id for n in range(3)]
        assert [one.id for one in client.files.list(limit=2, order="asc")] == [file.id, *others]
        stand_in.hold()
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
            metadata={"whose": "ours"},
            output_expires_after={"anchor": "created_at", "seconds": 7200},
        )
        with pytest.raises(ConflictError):
            client.files.delete(file.id)
        stand_in.go_on()
        wait_until(lambda: client.batches.retrieve(batch.id).status in ENDED, "it ends")
        batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.model, batch.metadata) == ("completed", "tales", {"whose": "ours"})
        assert batch.request_counts
        assert batch.request_counts.completed == 50
        assert batch.output_file_id
        client.files.content(batch.output_file_id).write_to_file(tmp_path / "out.jsonl")
        answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert {answer["custom_id"] for answer in answers} == {f"c{n}" for n in range(50)}
        assert [one.id for one in client.batches.list()] == [batch.id]
        assert client.files.delete(file.id).deleted
        with pytest.raises(NotFoundError):
            client.files.retrieve(file.id)
        with pytest.raises(ConflictError):
            client.batches.cancel(batch.id)
        with pytest.raises(BadRequestError):
            client.files.create(file=b"{}\n", purpose="vision")


def test_the_same_for_asyncio(access: dict[str, Any], stand_in: StandIn) -> None:
    from openai import AsyncOpenAI

    async def run() -> None:
        async with AsyncOpenAI(**access) as client:
            file = await client.files.create(file=("in.jsonl", lines(rows(20))), purpose="batch")
            stand_in.hold()
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
            batch = await client.batches.cancel(batch.id)
            while batch.status not in ENDED:
                await asyncio.sleep(0.02)
                batch = await client.batches.retrieve(batch.id)
            assert batch.status == "cancelled"
            assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
            assert [one.id async for one in client.files.list(purpose="batch")] == [file.id]

    asyncio.run(run())
