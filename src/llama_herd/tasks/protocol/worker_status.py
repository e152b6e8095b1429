"""A worker's report, each second or three, for `herd status` and other readers."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from llama_herd.counted import counted
from llama_herd.tasks.connection.complaint import no_list, quoted

#: Only a ready worker takes jobs and runs them.
WorkerState = Literal[
    "loading",
    "starting",
    "ready",
    "draining",
    "drained",
    "away",
    "stalled",
    "silent",
    "stuck",
    "spoilt",
    "stopping",
]

#: States of a worker that somebody has drained, and of all that are as they should be and need no restart.
DRAINING: Collection[str] = ("draining", "drained")
SOUND: Collection[str] = ("ready", *DRAINING)

#: Each other state: what is wrong with the worker, and what follows.
TROUBLE: Mapping[str, str] = {
    "loading": "is loading its model onto the device; a large model takes minutes",
    "starting": "has not asked for messages yet",
    "draining": "takes no more jobs, and ends or hands back those that it has; herd drain --undo ends that",
    "drained": "takes no jobs; herd drain --undo ends that",
    "away": "the server that computes for it does not answer; it keeps its jobs, and takes no others",
    "stalled": "its engine stands still; if that lasts, other workers take over its jobs",
    "silent": "does not ask for messages, although some wait; it will exit soon",
    "stuck": "sends no events or results, although Redis accepts them; it will exit soon",
    "spoilt": "reads no queue: the key of each one holds something else than a list",
    "stopping": "takes no more jobs",
}


#: What helps links that nobody takes.
LINKS_FIX = (
    "Fix: start a worker that reads it, or lead links elsewhere: route_links in the sender's app, or "
    "HERD_LINK_ROUTES or HERD_LINK_QUEUE of the worker"
)


#: What helps jobs that tasks for later keep out.
LATER_FIX = (
    "send such tasks to a queue of their own, with a worker of their app; until these are due, one more "
    "worker like this takes the jobs"
)

#: Most workers that a complaint names.
MAX_NAMED = 3

#: What parts two workers of one name.
NAMESAKE_FIX = "start one of them with another --name, or on a machine with a host name of its own"


def eviction_complaint(policy: str) -> str:
    """Say that Redis drops jobs by this policy, with the fix."""
    return (
        f"Redis drops accepted jobs when it reaches its maxmemory (maxmemory-policy {policy}). "
        "Fix: redis-cli CONFIG SET maxmemory-policy noeviction"
    )


def namesake_complaint(name: str) -> str:
    """Say that two workers have one name, with the fix."""
    return (
        f"two workers are called {name}, so each hides the other's report, here and from other workers. "
        f"Fix: {NAMESAKE_FIX}"
    )


def weights_complaint(model: str, workers: Sequence[str]) -> str:
    """Say that workers of one model have other weights, one of each kind, with the fix."""
    return (
        f"{' and '.join(workers[:MAX_NAMED])} serve {model} with other weights each, and a job that changes "
        "hands goes on with those of its new worker. Fix: the same files for all, or for each a "
        "HERD_SERVED_MODEL_NAME of its own"
    )


class WorkerStatus(BaseModel):
    """A worker's last report. Unknown fields of other versions are ignored."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Its name.")
    state: str = Field(description=f"{', '.join(get_args(WorkerState))}; other versions may have others.")
    model: str = Field(description="The model that it serves.")
    device: str = Field(description="Where the model is.")
    weights_digest: str = Field(
        default="", description="A digest of its weights, the same wherever these are; empty: not known."
    )
    slots: int = Field(description="Most rows of its batch.")
    loaded_percent: int = Field(default=100, description="Share of the model's layers that is on the device.")
    started_ms: int = Field(default=0, description="When it had its model, in unix milliseconds; 0: not yet.")
    max_length: int = Field(
        default=0, description="Most tokens of a prompt together with its output; 0: not known."
    )
    running: int = Field(default=0, description="Rows of its batch.")
    waiting: int = Field(default=0, description="Rows that wait in it for room.")
    steps: int = Field(default=0, description="Forward passes since it started.")
    kv_cache_tokens: int = Field(default=0, description="Size of its KV cache.")
    kv_cache_usage: float = Field(default=0.0, description="Share of the KV cache in use, from 0 to 1.")
    prefix_hit_rate: float = Field(
        default=0.0, description="Share of the prompt tokens that were found in the prefix cache."
    )
    prefix_cache_hits: int = Field(
        default=0, description="Prompt tokens found in the prefix cache since it started."
    )
    tokens_per_s: float = Field(
        default=0.0, description="Tokens of the tenant's jobs a second, within the last seconds."
    )
    ttft_s: float = Field(
        default=0.0,
        description="Median time to the first token of jobs that ended within the last minute; 0: none did.",
    )
    num_ended: int = Field(default=0, description="How many of the tenant's jobs have ended here.")
    num_failed: int = Field(default=0, description="How many of these have failed.")
    # A report never names the queues of other tenants.
    left_out: str = Field(
        default="",
        description="The tenant's queue if it is not read, since `spoilt_key` holds no list; else empty.",
    )
    spoilt_key: str = Field(default="", description="That key.")
    spoilt_type: str = Field(default="", description="What the key holds; empty if the worker may not ask.")
    evicts: str = Field(
        default="", description="The policy by which Redis may drop jobs; empty if it does not."
    )
    unread_list: str = Field(
        default="",
        description="A list into which links of the tenant's jobs go and that nobody reads; else empty.",
    )
    unread_messages: int = Field(default=0, description="How many messages wait in it.")
    unread_s: float = Field(default=0.0, description="How long nobody has taken one.")
    later_tasks: int = Field(
        default=0,
        description="Celery tasks that it holds until their ETA, if these take the places of jobs; else 0.",
    )
    chats: str = Field(
        default="", description="`yes`: its model answers conversations, by a chat template; else empty."
    )
    sampling: str = Field(
        default="", description="The sampling that the model's files recommend, as JSON; empty: none."
    )
    process: str = Field(default="", description="A random id of the process; empty: not ready yet.")
    namesake: str = Field(
        default="", description="The `process` of another worker of this name; empty: there is none."
    )
    beat_ms: int = Field(
        default=0, description="Time of the report by the clock of Redis, in unix milliseconds."
    )

    @property
    def num_free(self) -> int:
        """Rows that could be given a job at once; 0 while jobs wait here or the worker takes none."""
        is_open = self.state == "ready" and not self.waiting and not self.later_tasks
        return max(0, self.slots - self.running) if is_open else 0

    @property
    def own_sampling(self) -> dict[str, Any]:
        """The sampling that the model's files recommend, by the names of a job's fields."""
        try:
            found = json.loads(self.sampling or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def shown_state(self) -> str:
        """The state, with the progress if the worker is loading its model."""
        return f"loading {self.loaded_percent}%" if self.state == "loading" else self.state

    @property
    def complaints(self) -> tuple[str, ...]:
        """Complaints of this worker about Redis and what is sent there, each with the fix."""
        complaints = []
        if self.left_out:
            why = no_list(self.spoilt_key, self.spoilt_type)
            complaints.append(f"{self.left_out} is left out: {why}")
        if self.evicts:
            complaints.append(eviction_complaint(self.evicts))
        if self.unread_list:
            complaints.append(
                f"nobody has taken a message from the list {quoted(self.unread_list)} for "
                f"{self.unread_s:.0f} s, and {self.unread_messages:,} wait, links of jobs among them. "
                + LINKS_FIX
            )
        if self.later_tasks:
            complaints.append(
                f"{self.name} holds {counted(self.later_tasks, 'Celery task')} with an ETA in the place "
                f"of jobs. Fix: {LATER_FIX}"
            )
        if self.namesake:
            complaints.append(namesake_complaint(self.name))
        return tuple(complaints)


def fleet_complaints(workers: Sequence[WorkerStatus]) -> list[str]:
    """What a tenant's workers complain of, and which models have workers with other weights, each once."""
    found = [complaint for worker in workers for complaint in worker.complaints]
    kinds = defaultdict[str, dict[str, str]](dict)
    for worker in workers:
        if worker.weights_digest:
            kinds[worker.model].setdefault(worker.weights_digest, worker.name)
    found += [weights_complaint(model, [*some.values()]) for model, some in kinds.items() if len(some) > 1]
    return list(dict.fromkeys(found))
