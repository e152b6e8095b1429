"""The operations of the gateway's API, as its description lists them, and the errors that they may give."""

from typing import NamedTuple

from llama_herd.tasks.gateway.request_headers import AFTER_QUERY, GONE_HEADER, KEY_HEADER, LAST_ID_HEADER


class Operation(NamedTuple):
    """One method of one path, as the description of the API lists it.

    body, answer: names of schemas; events: that of each event of the answer, if it is, or may be, a stream;
    otherwise: another status that comes with the same answer, or 204, that comes with none. queries, headers:
    names, and what they say.
    """

    method: str
    path: str
    what: str
    status: int = 200
    body: str = ""
    answer: str = ""
    events: str = ""
    otherwise: int = 0
    role: str = ""
    queries: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


KEY = (KEY_HEADER, "A name of your own. The same request under the same name is the same job.")
GONE = (GONE_HEADER, "cancel or stay: what becomes of the job if you go away before its end.")
SEEN = (LAST_ID_HEADER, "Number of the last event that you have seen.")
SEEN_TOO = (AFTER_QUERY, f"The same as {LAST_ID_HEADER}, for clients that cannot send headers.")
AFTER = ("after", "The id after which the page begins.")
_JOB, _FILE, _BATCH = "/v1/jobs/{id}", "/v1/files/{id}", "/v1/batches/{id}"

OPERATIONS = (
    Operation(
        "post",
        "/v1/completions",
        "Continue a text.",
        body="CompletionBody",
        answer="Completion",
        events="Completion",
        role="producer",
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer in a conversation.",
        body="ChatBody",
        answer="ChatCompletion",
        events="ChatCompletionChunk",
        role="producer",
        headers=(KEY, GONE),
    ),
    Operation(
        "post",
        "/tokenize",
        "The token ids of a text, or of a conversation.",
        body="TokenizeBody",
        answer="TokenizeAnswer",
        role="producer",
    ),
    Operation(
        "post",
        "/detokenize",
        "The text that token ids stand for.",
        body="DetokenizeBody",
        answer="DetokenizeAnswer",
        role="producer",
    ),
    Operation(
        "get", "/v1/models", "The models that jobs are taken for.", answer="ModelList", role="subscriber"
    ),
    Operation("get", "/v1/models/{model}", "One of these models.", answer="Model", role="subscriber"),
    Operation(
        "post",
        "/v1/jobs",
        "Put a job into the queue.",
        202,
        body="GenerationJob",
        answer="Accepted",
        role="producer",
        headers=(KEY,),
    ),
    Operation("get", _JOB, "A job's state; at its end, its result.", answer="JobView", role="subscriber"),
    Operation(
        "get",
        f"{_JOB}/events",
        "A job's events, recorded ones first, up to its end. 204 if you have seen its end.",
        events="Event",
        otherwise=204,
        role="subscriber",
        queries=(SEEN_TOO,),
        headers=(SEEN,),
    ),
    Operation("delete", _JOB, "End a job early. Its text is kept.", 202, answer="Cancelled", role="producer"),
    Operation("post", f"{_JOB}/purge", "Forget a job that is over, or waits.", 204, role="operator"),
    Operation(
        "post",
        "/v1/files",
        "Store a file for a batch, as it comes.",
        body="FileForm",
        answer="FileObject",
        role="producer",
    ),
    Operation(
        "get",
        "/v1/files",
        "The tenant's files.",
        answer="FileList",
        role="producer",
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
        "What is known of a file. Only producers see what was uploaded.",
        answer="FileObject",
        role="subscriber",
    ),
    Operation(
        "delete",
        _FILE,
        "Delete a file, unless a batch reads it.",
        answer="FileDeleted",
        role="producer",
    ),
    Operation(
        "get",
        f"{_FILE}/content",
        "The bytes of a file. Only producers see what was uploaded.",
        answer="Bytes",
        role="subscriber",
    ),
    Operation(
        "post",
        "/v1/batches",
        "Run the rows of a file.",
        body="BatchBody",
        answer="BatchObject",
        role="producer",
        headers=(KEY,),
    ),
    Operation(
        "get",
        "/v1/batches",
        "The tenant's batches, the newest first.",
        answer="BatchList",
        role="producer",
        queries=(AFTER, ("limit", "Most batches of a page: 1 to 100.")),
    ),
    Operation("get", _BATCH, "How far a batch is.", answer="BatchObject", role="subscriber"),
    Operation(
        "post",
        f"{_BATCH}/cancel",
        "End a batch early. What is done is kept.",
        answer="BatchObject",
        role="producer",
    ),
    Operation(
        "get",
        "/v1/herd",
        "The queues, the workers, and who waits how long. Ids of jobs are for operators only.",
        answer="HerdView",
        role="subscriber",
    ),
    Operation("get", "/version", "The version of this gateway.", answer="Version", role="subscriber"),
    Operation(
        "get",
        "/health",
        "The same as /health/ready.",
        answer="Health",
        otherwise=503,
    ),
    Operation("get", "/health/live", "200 as long as the process answers. Needs no key.", answer="Health"),
    Operation(
        "get",
        "/health/ready",
        "200 when Redis is there and a worker serves, else 503. Needs no key.",
        answer="Health",
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
