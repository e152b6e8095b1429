"""Routes that clients of OpenAI, vLLM and others know and this gateway has not: what to use instead."""

from typing import NamedTuple


class AbsentRoutes(NamedTuple):
    """Routes that are missing for one reason. Each path stands for all below it, too."""

    paths: tuple[str, ...]
    instead: str


_CHAT = "POST /v1/chat/completions"

ABSENT_ROUTES = (
    AbsentRoutes(
        ("/completions", "/chat", "/responses", "/models", "/files", "/batches"),
        "OpenAI's routes begin with /v1 here. Put /v1 behind the base URL of the client",
    ),
    AbsentRoutes(("/v1/v1",), "the base URL of the client ends with /v1 already. Put it there once"),
    AbsentRoutes(("/v1/tokenize", "/v1/detokenize"), "these are POST /tokenize and POST /detokenize"),
    AbsentRoutes(
        ("/v1/conversations",),
        "only answers are kept here. Use POST /v1/responses, with `previous_response_id`, or with all items "
        "so far in `input`",
    ),
    AbsentRoutes(
        (
            *("/v1/assistants", "/v1/threads", "/v1/agents", "/v1/chatkit"),
            *("/v1/skills", "/v1/containers", "/v1/vaults", "/v1/decisions"),
        ),
        f"nothing here keeps conversations or runs tools. Use {_CHAT} with `tools`, and run them yourself",
    ),
    AbsentRoutes(
        ("/embeddings", "/embedding", "/v1/pooling", "/pooling", "/v1/embed", "/v2/embed", "/embed"),
        "vectors of texts are POST /v1/embeddings. Put /v1 behind the base URL of the client",
    ),
    AbsentRoutes(
        ("/v1/reranking", "/reranking", "/v1/score", "/score", "/classify"),
        "documents are ranked by POST /v1/rerank, and nothing is classified. Use `structured_outputs.choice` "
        "with `logprobs`, for a model that answers with one of some words",
    ),
    AbsentRoutes(
        ("/v1/moderations",),
        f"nothing here judges texts by itself. Use {_CHAT} with a model that was trained to, and `choice`",
    ),
    AbsentRoutes(
        ("/v1/images", "/v1/videos", "/v1/audio", "/v1/realtime", "/v1/live"),
        "models read and write texts alone here. Use a server for images or sound beside this one",
    ),
    AbsentRoutes(
        ("/v1/vector_stores",),
        f"documents are not searched here. Search them yourself, and send what fits to {_CHAT}",
    ),
    AbsentRoutes(
        ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"),
        "adapters are not loaded. Merge one into the weights, and start a worker with the merged model",
    ),
    AbsentRoutes(
        ("/v1/fine_tuning",),
        "models are not trained here. Train elsewhere, and start a worker with the merged weights",
    ),
    AbsentRoutes(
        ("/v1/evals",),
        "nothing is judged here. Use lm-evaluation-harness with this gateway: docs/evaluate.md",
    ),
    AbsentRoutes(("/v1/uploads",), "files come whole. Use POST /v1/files"),
    AbsentRoutes(
        ("/v1/webhook_endpoints", "/v1/webhook_event_types"),
        "webhooks are set by the command `herd webhooks set`",
    ),
    AbsentRoutes(
        ("/v1/organization", "/v1/projects", "/v1/safety", "/v1/content_provenance_checks"),
        "there are no organizations and projects. Tenants have keys: `herd keys create`",
    ),
    AbsentRoutes(
        ("/v1/messages", "/v1/complete"),
        f"Anthropic's API is not spoken here. Use {_CHAT}",
    ),
    AbsentRoutes(("/api",), f"Ollama's API is not spoken here. Use {_CHAT}, which most of its clients can"),
    AbsentRoutes(
        ("/completion", "/infill", "/generate", "/generate_stream", "/invocations"),
        "use POST /v1/completions",
    ),
    AbsentRoutes(
        ("/apply-template",),
        "use POST /tokenize with `messages`, which renders the chat template",
    ),
    AbsentRoutes(
        ("/props", "/slots", "/load", "/info", "/server_info"),
        "use GET /v1/herd for the workers and their rows, and GET /v1/models for the models",
    ),
    AbsentRoutes(("/ping", "/healthz", "/livez", "/readyz"), "use GET /health/live and GET /health/ready"),
    AbsentRoutes(("/metrics",), "metrics are at a port of their own, HERD_METRICS_PORT"),
)


def instead_of(path: str) -> str | None:
    """What to use instead of a path; None if nobody is known to have it."""
    begun = {path[:end] for end, one in enumerate(f"{path}/") if one == "/"}
    return next((one.instead for one in ABSENT_ROUTES if not begun.isdisjoint(one.paths)), None)
