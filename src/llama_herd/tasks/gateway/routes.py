"""The routes of the gateway's API: what answers each, what is said of it, and the errors that it may give."""

from collections.abc import Awaitable, Callable
from inspect import getdoc
from typing import NamedTuple

from pydantic import BaseModel
from starlette.types import ASGIApp

from llama_herd.tasks.gateway import (
    batch_routes,
    dead_routes,
    file_routes,
    herd_routes,
    job_routes,
    openai_routes,
    response_routes,
    text_routes,
)
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.request_headers import AFTER_QUERY, GONE_HEADER, KEY_HEADER, LAST_ID_HEADER
from llama_herd.tasks.openai.answer_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
)
from llama_herd.tasks.openai.batch_object import BatchBody
from llama_herd.tasks.openai.embeddings import VectorList
from llama_herd.tasks.openai.ranks import RankList
from llama_herd.tasks.openai.responses.schema import ResponseEvent, ResponseObject
from llama_herd.tasks.openai.tokenizing import DetokenizeAnswer, TokenizeAnswer
from llama_herd.tasks.protocol.health import Health
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.tasks.security.api_keys import KeyRole

#: A class of ours, or the name of a schema that is none.
Schema = type[BaseModel] | str
#: What answers the calls of a route: it returns the answer, None if that is empty, or writes it itself. Its
#: docstring is what the description of the API says of it.
Endpoint = Callable[[Call], Awaitable[BaseModel | ASGIApp | None]]


class Operation(NamedTuple):
    """One method of one path: what answers it, whom, and what the description of the API says of it.

    role: a key's; None: no key is needed. body: its schema, a class or a name. writes: that of an answer that
    the endpoint writes itself; events: of each event, if the answer is, or may be, a stream; otherwise:
    another status that comes with the same answer, or 204, that comes with none. queries, headers: names, and
    what they say. also: its paths at other servers.
    """

    method: str
    path: str
    endpoint: Endpoint
    role: KeyRole | None
    status: int = 200
    body: Schema = ""
    writes: Schema = ""
    events: Schema = ""
    otherwise: int = 0
    queries: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.also)

    @property
    def answer(self) -> Schema:
        """The schema of the answer; empty: it has none."""
        returned = self.endpoint.__annotations__["return"]
        is_answer = isinstance(returned, type) and issubclass(returned, BaseModel)
        return returned if is_answer else self.writes

    @property
    def what(self) -> str:
        """The endpoint's docstring."""
        return getdoc(self.endpoint) or ""


KEY = (KEY_HEADER, "A name of your own. The same request under the same name is the same job.")
GONE = (GONE_HEADER, "cancel or stay: what becomes of the job if you go away before its end.")
SEEN = (LAST_ID_HEADER, "Id of the last event that you have seen, or its number.")
SEEN_TOO = (AFTER_QUERY, f"The same as {LAST_ID_HEADER}, for clients that cannot send headers.")
AFTER = ("after", "The id after which the page begins.")
BATCH_QUERIES = (AFTER, ("limit", "Most batches of a page: 1 to 100."))
JOB_QUERIES = (
    (
        "state",
        "ended (any end), done, failed or cancelled; or running, queued, unserved, delayed.",
    ),
    ("model", "Only jobs of this model."),
    ("since_s", "Only jobs that ended within so many seconds."),
    ("metadata", "Only ended jobs with this note, name=value; may be repeated."),
    ("after", "The id of an ended job after which the page begins."),
    ("limit", "Most jobs of a page: 1 to 500."),
)
FOR = (("for_s", "It ends by itself after so many seconds, a year at most; absent: when it is ended."),)
STREAM_QUERIES = (
    ("stream", "true: all its events, as they come."),
    (response_routes.AFTER_QUERY, "The sequence_number of the last event that you have seen."),
)
ITEM_QUERIES = (
    AFTER,
    ("limit", "Most items of a page: 1 to 100."),
    ("order", "asc or desc, as they were told."),
)
FILE_QUERIES = (
    AFTER,
    ("limit", "Most files of a page: up to 10,000 may be asked for, and at most 1,000 come."),
    ("order", "asc or desc, by the time they were stored."),
    ("purpose", "batch or batch_output: only these."),
)
SUBSCRIBER, PRODUCER, OPERATOR = KeyRole
_JOB, _FILE, _BATCH = "/v1/jobs/{id}", "/v1/files/{id}", "/v1/batches/{id}"
_RESPONSE = "/v1/responses/{id}"
_DEAD = "/v1/dead/{name}"
_QUEUE, _WORKER = "/v1/queues/{model}", "/v1/workers/{name}"

OPERATIONS = (
    Operation(
        "post",
        "/v1/completions",
        openai_routes.create_completion,
        PRODUCER,
        body="CompletionBody",
        writes=Completion,
        events=Completion,
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        openai_routes.create_chat_completion,
        PRODUCER,
        body="ChatBody",
        writes=ChatCompletion,
        events=ChatCompletionChunk,
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/v1/responses",
        response_routes.create_response,
        PRODUCER,
        body="ResponseBody",
        writes=ResponseObject,
        events=ResponseEvent,
        headers=(KEY, GONE),
    ),
    Operation(
        "get",
        _RESPONSE,
        response_routes.get_response,
        SUBSCRIBER,
        writes=ResponseObject,
        events=ResponseEvent,
        queries=STREAM_QUERIES,
    ),
    Operation("delete", _RESPONSE, response_routes.delete_response, OPERATOR),
    Operation(
        "get", f"{_RESPONSE}/input_items", response_routes.list_input_items, OPERATOR, queries=ITEM_QUERIES
    ),
    Operation(
        "post", f"{_RESPONSE}/cancel", response_routes.cancel_response, PRODUCER, writes=ResponseObject
    ),
    Operation(
        "post",
        "/v1/embeddings",
        text_routes.create_embeddings,
        PRODUCER,
        body="EmbeddingBody",
        writes=VectorList,
    ),
    Operation(
        "post",
        "/v1/rerank",
        text_routes.rank_documents,
        PRODUCER,
        body="RankBody",
        writes=RankList,
        also=("/v2/rerank", "/rerank"),
    ),
    Operation(
        "post",
        "/tokenize",
        openai_routes.tokenize_prompt,
        PRODUCER,
        body="TokenizeBody",
        writes=TokenizeAnswer,
    ),
    Operation(
        "post",
        "/detokenize",
        openai_routes.detokenize_ids,
        PRODUCER,
        body="DetokenizeBody",
        writes=DetokenizeAnswer,
    ),
    Operation(
        "get",
        "/tokenizer_info",
        openai_routes.show_tokenizer,
        PRODUCER,
        writes=TokenizerInfo,
        queries=(("model", "Absent: that of the gateway, or the only one that is served."),),
    ),
    Operation("get", "/v1/models", openai_routes.list_models, SUBSCRIBER),
    Operation("get", "/v1/models/{model}", openai_routes.get_model, SUBSCRIBER),
    Operation(
        "post",
        "/v1/jobs",
        job_routes.submit_job,
        PRODUCER,
        202,
        body="Job",
        writes=job_routes.Accepted,
        headers=(KEY,),
    ),
    Operation("get", "/v1/jobs", job_routes.list_jobs, OPERATOR, queries=JOB_QUERIES),
    Operation("get", _JOB, job_routes.get_job, SUBSCRIBER, writes=job_routes.JobView),
    Operation(
        "get",
        f"{_JOB}/events",
        job_routes.stream_events,
        SUBSCRIBER,
        events="Event",
        otherwise=204,
        queries=(SEEN_TOO,),
        headers=(SEEN,),
    ),
    Operation("delete", _JOB, job_routes.cancel_job, PRODUCER, 202),
    Operation("post", f"{_JOB}/retry", job_routes.retry_job, OPERATOR, 202, writes=job_routes.Retried),
    Operation("post", f"{_JOB}/purge", job_routes.forget_job, OPERATOR, 204),
    Operation("post", "/v1/queues/{model}/clear", job_routes.clear_queue, OPERATOR),
    Operation(
        "get", "/v1/dead", dead_routes.list_dead, OPERATOR, queries=(("limit", "Most entries: 1 to 1,000."),)
    ),
    Operation("get", _DEAD, dead_routes.get_letter, OPERATOR, writes=dead_routes.Letter),
    Operation("post", f"{_DEAD}/retry", dead_routes.revive_dead, OPERATOR, 202),
    Operation("delete", _DEAD, dead_routes.drop_dead, OPERATOR, 204),
    Operation("post", "/v1/files", file_routes.create_file, PRODUCER, body="FileForm"),
    Operation("get", "/v1/files", file_routes.list_files, PRODUCER, queries=FILE_QUERIES),
    Operation("get", _FILE, file_routes.get_file, SUBSCRIBER),
    Operation("delete", _FILE, file_routes.delete_file, PRODUCER),
    Operation("get", f"{_FILE}/content", file_routes.get_file_content, SUBSCRIBER, writes="Bytes"),
    Operation("post", "/v1/batches", batch_routes.create_batch, PRODUCER, body=BatchBody, headers=(KEY,)),
    Operation("get", "/v1/batches", batch_routes.list_batches, PRODUCER, queries=BATCH_QUERIES),
    Operation("get", _BATCH, batch_routes.get_batch, SUBSCRIBER),
    Operation("post", f"{_BATCH}/cancel", batch_routes.cancel_batch, PRODUCER),
    Operation("get", "/v1/herd", herd_routes.show_herd, SUBSCRIBER, writes=herd_routes.HerdView),
    Operation("post", f"{_QUEUE}/pause", herd_routes.pause_model, OPERATOR, queries=FOR),
    Operation("post", f"{_QUEUE}/resume", herd_routes.resume_model, OPERATOR),
    Operation("post", f"{_WORKER}/drain", herd_routes.drain, OPERATOR, queries=FOR),
    Operation("post", f"{_WORKER}/resume", herd_routes.resume_worker, OPERATOR),
    Operation("get", "/version", herd_routes.show_version, SUBSCRIBER),
    Operation("get", "/health", herd_routes.health, None, writes=Health, otherwise=503),
    Operation("get", "/health/live", herd_routes.live, None, writes=Health),
    Operation("get", "/health/ready", herd_routes.ready, None, writes=Health, otherwise=503),
)

#: By status: why a request may be answered with it.
ERRORS = {
    400: "the body or a header is wrong, or the model cannot take the prompt",
    401: "no key, a wrong one, or one that has expired",
    403: "the key's role is too small, another site's page calls, or the gateway lacks a right in Redis",
    404: "no such job, file, batch or worker in this tenant, no such model, no such route",
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
    507: "there is no room for the file, or ended jobs keep as much as they may",
}
