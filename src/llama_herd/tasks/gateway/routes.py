"""The routes of the gateway's API: what answers each, what is said of it, and the errors that it may give."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import ASGIApp

from llama_herd.tasks.gateway import health
from llama_herd.tasks.gateway.batch_routes import cancel_batch, create_batch, get_batch, list_batches
from llama_herd.tasks.gateway.file_routes import (
    create_file,
    delete_file,
    get_file,
    get_file_content,
    list_files,
)
from llama_herd.tasks.gateway.health import Health
from llama_herd.tasks.gateway.herd_routes import HerdView, Version, show_herd, show_version
from llama_herd.tasks.gateway.job_routes import (
    Accepted,
    Cancelled,
    JobView,
    cancel_job,
    forget_job,
    get_job,
    stream_events,
    submit_job,
)
from llama_herd.tasks.gateway.openai_routes import (
    create_chat_completion,
    create_completion,
    get_model,
    list_models,
)
from llama_herd.tasks.gateway.request_headers import AFTER_QUERY, GONE_HEADER, KEY_HEADER, LAST_ID_HEADER
from llama_herd.tasks.gateway.tokenize_routes import detokenize_ids, tokenize_prompt
from llama_herd.tasks.openai.answer_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Model,
    ModelList,
)
from llama_herd.tasks.openai.batch_object import BatchBody, BatchList, BatchObject
from llama_herd.tasks.openai.file_object import FileDeleted, FileList, FileObject
from llama_herd.tasks.openai.tokenizing import DetokenizeAnswer, TokenizeAnswer
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.security.api_keys import KeyRole

#: A class of ours, or the name of a schema that is none.
Schema = type[BaseModel] | str


class Operation(NamedTuple):
    """One method of one path: what answers it, and what the description of the API says of it.

    body, answer: schemas, a class or a name; events: of each event, if the answer is, or may be, a stream;
    otherwise: another status that comes with the same answer, or 204, that comes with none. queries, headers:
    names, and what they say.
    """

    method: str
    path: str
    endpoint: Callable[[Request], Awaitable[ASGIApp]]
    role: KeyRole | None
    what: str
    status: int = 200
    body: Schema = ""
    answer: Schema = ""
    events: Schema = ""
    otherwise: int = 0
    queries: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


KEY = (KEY_HEADER, "A name of your own. The same request under the same name is the same job.")
GONE = (GONE_HEADER, "cancel or stay: what becomes of the job if you go away before its end.")
SEEN = (LAST_ID_HEADER, "Number of the last event that you have seen.")
SEEN_TOO = (AFTER_QUERY, f"The same as {LAST_ID_HEADER}, for clients that cannot send headers.")
AFTER = ("after", "The id after which the page begins.")
SUBSCRIBER, PRODUCER, OPERATOR = KeyRole
_JOB, _FILE, _BATCH = "/v1/jobs/{id}", "/v1/files/{id}", "/v1/batches/{id}"

OPERATIONS = (
    Operation(
        "post",
        "/v1/completions",
        create_completion,
        PRODUCER,
        "Continue a text.",
        body="CompletionBody",
        answer=Completion,
        events=Completion,
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        create_chat_completion,
        PRODUCER,
        "Answer in a conversation.",
        body="ChatBody",
        answer=ChatCompletion,
        events=ChatCompletionChunk,
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/tokenize",
        tokenize_prompt,
        PRODUCER,
        "The token ids of a text, or of a conversation.",
        body="TokenizeBody",
        answer=TokenizeAnswer,
    ),
    Operation(
        "post",
        "/detokenize",
        detokenize_ids,
        PRODUCER,
        "The text that token ids stand for.",
        body="DetokenizeBody",
        answer=DetokenizeAnswer,
    ),
    Operation(
        "get", "/v1/models", list_models, SUBSCRIBER, "The models that jobs are taken for.", answer=ModelList
    ),
    Operation("get", "/v1/models/{model}", get_model, SUBSCRIBER, "One of these models.", answer=Model),
    Operation(
        "post",
        "/v1/jobs",
        submit_job,
        PRODUCER,
        "Put a job into the queue.",
        202,
        body=GenerationJob,
        answer=Accepted,
        headers=(KEY,),
    ),
    Operation("get", _JOB, get_job, SUBSCRIBER, "A job's state; at its end, its result.", answer=JobView),
    Operation(
        "get",
        f"{_JOB}/events",
        stream_events,
        SUBSCRIBER,
        "A job's events, recorded ones first, up to its end. 204 if you have seen its end.",
        events="Event",
        otherwise=204,
        queries=(SEEN_TOO,),
        headers=(SEEN,),
    ),
    Operation(
        "delete", _JOB, cancel_job, PRODUCER, "End a job early. Its text is kept.", 202, answer=Cancelled
    ),
    Operation("post", f"{_JOB}/purge", forget_job, OPERATOR, "Forget a job that is over, or waits.", 204),
    Operation(
        "post",
        "/v1/files",
        create_file,
        PRODUCER,
        "Store a file for a batch, as it comes.",
        body="FileForm",
        answer=FileObject,
    ),
    Operation(
        "get",
        "/v1/files",
        list_files,
        PRODUCER,
        "The tenant's files.",
        answer=FileList,
        queries=(
            AFTER,
            ("limit", "Most files of a page: up to 10,000 may be asked for, and at most 1,000 come."),
            ("order", "asc or desc, by the time they were stored."),
            ("purpose", "batch or batch_output: only these."),
        ),
    ),
    Operation(
        "get",
        _FILE,
        get_file,
        SUBSCRIBER,
        "What is known of a file. Only producers see what was uploaded.",
        answer=FileObject,
    ),
    Operation(
        "delete", _FILE, delete_file, PRODUCER, "Delete a file, unless a batch reads it.", answer=FileDeleted
    ),
    Operation(
        "get",
        f"{_FILE}/content",
        get_file_content,
        SUBSCRIBER,
        "The bytes of a file. Only producers see what was uploaded.",
        answer="Bytes",
    ),
    Operation(
        "post",
        "/v1/batches",
        create_batch,
        PRODUCER,
        "Run the rows of a file.",
        body=BatchBody,
        answer=BatchObject,
        headers=(KEY,),
    ),
    Operation(
        "get",
        "/v1/batches",
        list_batches,
        PRODUCER,
        "The tenant's batches, the newest first.",
        answer=BatchList,
        queries=(AFTER, ("limit", "Most batches of a page: 1 to 100.")),
    ),
    Operation("get", _BATCH, get_batch, SUBSCRIBER, "How far a batch is.", answer=BatchObject),
    Operation(
        "post",
        f"{_BATCH}/cancel",
        cancel_batch,
        PRODUCER,
        "End a batch early. What is done is kept.",
        answer=BatchObject,
    ),
    Operation(
        "get",
        "/v1/herd",
        show_herd,
        SUBSCRIBER,
        "The queues, the workers, and who waits how long. Ids of jobs are for operators only.",
        answer=HerdView,
    ),
    Operation("get", "/version", show_version, SUBSCRIBER, "The version of this gateway.", answer=Version),
    Operation(
        "get", "/health", health.ready, None, "The same as /health/ready.", answer=Health, otherwise=503
    ),
    Operation(
        "get",
        "/health/live",
        health.live,
        None,
        "200 as long as the process answers. Needs no key.",
        answer=Health,
    ),
    Operation(
        "get",
        "/health/ready",
        health.ready,
        None,
        "200 when Redis is there and a worker serves, else 503. Needs no key.",
        answer=Health,
        otherwise=503,
    ),
)

#: By status: why a request may be answered with it.
ERRORS = {
    400: "the body or a header is wrong, or the model cannot take the prompt",
    401: "no key, or a wrong one",
    403: "the key's role is too small, another site's page calls, or the gateway lacks a right in Redis",
    404: "no such job, file or batch in this tenant, no such model, no such route",
    408: "the body did not come in time",
    409: "another job has this Idempotency-Key; the job was cancelled; a worker runs it; a batch reads the "
    "file; or the batch is over",
    410: "the bytes of the file are gone",
    413: "the body, or the file, is too long",
    415: "the body is compressed",
    422: "the job has wrong fields",
    429: "the queue is full, the key asks too often, too many answers are under way, or a quota is full",
    431: "the head of the request is too long",
    500: "the job failed, and would fail again",
    503: "there are no keys, Redis or the files are away, no worker is up, or the job may succeed later: see "
    "Retry-After",
    504: "the job was not finished by its deadline",
    507: "there is no room for the file",
}
