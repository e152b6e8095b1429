"""Jobs over HTTP, and their tokens as server-sent events. Needs a worker: `herd worker --with-redis`.

pip install fastapi uvicorn; uvicorn --app-dir examples fastapi_sse:app
curl -d '{"prompt": "Once upon a time"}' localhost:8000/jobs
curl -N localhost:8000/jobs/ID/events
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from llama_herd import AsyncClient, GenerationJob, HerdError, Settings
from llama_herd.http_status import http_headers, http_status

settings = Settings.read()
herd = AsyncClient(settings=settings)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with herd:
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(HerdError)
async def refused(_: Request, error: HerdError) -> Response:
    return JSONResponse({"error": str(error)}, http_status(error), http_headers(error))


@app.post("/jobs", status_code=202)
async def submit(request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, str]:
    job = GenerationJob.parse(await request.body(), settings)
    return {"id": await herd.submit(job, idempotency_key=idempotency_key)}


@app.get("/jobs/{job_id}/events")
async def events(job_id: str, last_event_id: Annotated[int, Header(ge=0)] = 0) -> Response:
    """A browser's EventSource that comes back names the last event it saw, and misses none."""
    record = (await herd.history(job_id)).record  # an unknown job is a 404 before the stream begins
    if record.is_final and last_event_id >= record.seq:
        return Response(status_code=204)  # there is no more: the browser stops asking

    async def stream() -> AsyncIterator[str]:
        async for event in herd.stream(job_id, after=last_event_id):
            yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.to_json()}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


@app.delete("/jobs/{job_id}")
async def cancel(job_id: str) -> dict[str, str]:
    return {"state": await herd.cancel(job_id)}
