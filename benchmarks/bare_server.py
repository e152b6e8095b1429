"""The floor of a gateway: the same HTTP server, which sends what stands in a file to everybody.

    python -m benchmarks.bare_server FILE

The file has parts as JSON, and how many seconds lie before each. The server reads a request's JSON, and does
nothing else. It prints its port.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from socket import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


def serve(path: Path) -> None:
    parts, pause_s = json.loads(path.read_text())

    async def answer(request: Request) -> Response:
        json.loads(await request.body())
        if len(parts) == 1:
            return Response(parts[0], media_type="application/json")
        return StreamingResponse(paced(), media_type="text/event-stream")

    async def paced() -> AsyncGenerator[str]:
        for part in parts:
            await asyncio.sleep(pause_s)
            yield part

    listening = socket()
    listening.bind(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    app = Starlette(routes=[Route("/{any:path}", answer, methods=["POST"])])
    config = uvicorn.Config(app, http="h11", ws="none", log_level="error", access_log=False)
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
