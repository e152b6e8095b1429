"""Reads answers with whatever version of `openai` there is: a program, which knows nothing of ours.

    python tests/clients/reader.py URL KEY < cases.json

A case is {"chat": …, "body": …, "extra": …}. Written are the version, and of each case the whole answer, and
the chunks of the same as a stream, as the client has parsed them. A case {"texts": …}, the body of a request
for vectors, has one answer by each of the two clients. One {"responses": …, "extra": …} is a request to the
Responses API.
"""

import asyncio
import json
import sys
from typing import Any

import openai


def read(url: str, key: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        return [_read(client, case) for case in cases]


def _read(client: openai.OpenAI, case: dict[str, Any]) -> dict[str, Any]:
    if "texts" in case:
        return {"whole": client.embeddings.create(**case["texts"]).model_dump(mode="json", warnings=False)}
    if "responses" in case:
        asked = {**case["responses"], "extra_body": case["extra"]}
        answer = client.responses.create(**asked).model_dump(mode="json", exclude_unset=True)
        events = client.responses.create(**asked, stream=True)
        return {
            "whole": answer,
            "chunks": [one.model_dump(mode="json", exclude_unset=True) for one in events],
        }
    create: Any = client.chat.completions.create if case["chat"] else client.completions.create
    asked = {**case["body"], "extra_body": case["extra"]}
    whole = None if case.get("only_stream") else create(**asked).model_dump(mode="json", exclude_unset=True)
    chunks = create(**asked, stream=True, stream_options={"include_usage": True})
    return {"whole": whole, "chunks": [chunk.model_dump(mode="json", exclude_unset=True) for chunk in chunks]}


async def read_at_once(url: str, key: str, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The streams alone, some at the same time, by the asynchronous client."""
    turns = asyncio.Semaphore(8)
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:

        async def chunks(case: dict[str, Any]) -> list[dict[str, Any]]:
            if "texts" in case:
                told = await client.embeddings.create(**case["texts"])
                return [told.model_dump(mode="json", warnings=False)]
            completions = client.chat.completions if case.get("chat") else client.completions
            create: Any = (client.responses if "responses" in case else completions).create
            options = {} if "responses" in case else {"stream_options": {"include_usage": True}}
            body = case["responses" if "responses" in case else "body"]
            async with turns:
                stream = await create(**body, extra_body=case["extra"], stream=True, **options)
                return [chunk.model_dump(mode="json", exclude_unset=True) async for chunk in stream]

        return await asyncio.gather(*map(chunks, cases))


if __name__ == "__main__":
    url, key = sys.argv[1:]
    cases = json.load(sys.stdin)
    streams = asyncio.run(read_at_once(url, key, cases))
    print(json.dumps({"version": openai.__version__, "answers": read(url, key, cases), "streams": streams}))
