"""The names of all Redis keys.

herd:<tenant>:{<id>}:job      hash    the record: state, owner, lease, epoch, seq, n, body, envelope ...
herd:<tenant>:{<id>}:events   stream  the events, entry id <seq>-0, field e
herd:<tenant>:tokens:<id>     channel the same events as they come
herd:<tenant>:pending         zset    waiting jobs, by the time they were accepted, released or due
herd:<tenant>:pending:<list>  zset    a line: waiting jobs whose message is in this list of a queue
herd:<tenant>:pending:deadlines zset  jobs with a deadline that no live worker has, by their deadline
herd:<tenant>:delayed         zset    waiting jobs that are not due yet, by the time when they are
herd:<tenant>:waiting         hash    counts of what waits: <queue>:jobs, :tokens, :delayed, :taken ...
herd:<tenant>:leases          zset    running jobs, by the end of their lease
herd:<tenant>:quarantine      zset    poisoned jobs, by the time they were given up
herd:<tenant>:ctl:<owner>     channel notices to a worker which of its jobs to end; ctl:all: look at pauses
herd:<tenant>:paused          zset    queues of which workers take no jobs, by the time when that ends
herd:<tenant>:drained         zset    workers that take no jobs, by the time when that ends
herd:<tenant>:worker:<name>   hash    the last report of a worker
herd:<tenant>:workers         zset    the workers' names, by the time their reports expire
herd:<tenant>:served          zset    queues, by the last report of a worker that serves them; for 90 days
herd:<tenant>:room:<queue>    zset    the workers of a queue and their free rows: see beat.lua
herd:<tenant>:server:<id>     zset    the workers that have jobs in a server's hands: see share_server.lua
herd:<tenant>:batch:<run>     hash    the last report of a batch
herd:<tenant>:batches         zset    the batches' runs, by the time their reports expire
herd:<tenant>:{<id>}:file     hash    a file that was uploaded, or made of a batch's answers; not its bytes
herd:<tenant>:{<id>}:batch    hash    a batch over HTTP: what was asked for, state, epoch, counts, parts
herd:<tenant>:stored_files    zset    ids of files, by the time they were made
herd:<tenant>:stored_batches  zset    ids of batches, by the time they were made
herd:<tenant>:quota           hash    files, bytes, rows of the tenant; <what>:<fingerprint>: of a key
herd:files@<storage>          zset    <tenant>/<id> of files, by when they expire or are to be looked at
herd:batches@<storage>        zset    <tenant>/<id> of batches that need a feeder, by the end of their lease
herd:<tenant>:webhook         hash    whether the tenant has webhooks, and wants the ends of all jobs: jobs
herd:<tenant>:outbox          zset    webhooks that are to be sent, by the time they are due
herd:<tenant>:outbox:entries  hash    what each of them tells, and where, as JSON
herd:<tenant>:outbox:dead     zset    those that were given up, by the time of that
herd:<tenant>:ended           zset    the jobs that ended last, by the time of that; failed: those that failed
herd:<tenant>:kept            hash    bytes of ended jobs, in all and by the hour in which they go
herd:<tenant>:owed            zset    ended jobs whose result another Redis did not take, by when to try again
herd:<tenant>:untold          zset    jobs that no worker had when they ended, by when Celery is to be told
herd:<tenant>:dead            stream  the dead letters: messages that could not be read
herd:<tenant>:sweep           hash    when the last sweep was, what it saw, and where the next one begins
herd:<tenant>:unacked         hash    messages in workers' hands, as kombu notes them; ..._index: seen when
_kombu.binding.<queue>        set     Celery's: the queue exists; also _kombu.binding_permanent.<queue>
celery-task-meta-<id>         string  Celery's: the result of a job
celery-taskset-meta-<id>      string  Celery's: a group; with .j, .t, .s and .c: a chord
herd.<model>                  lists   Celery's: the queue of a model; see llama_herd.tasks.protocol.priority

Of all tenants there are herd:keys, by which others come in at the gateway (`stored_api_keys.py`),
herd:webhooks, where they are told of ends, herd:webhooks@sender, the gateway that tells them
(`webhook_configs.py`), and herd:storages, the storages of files by when they count as lost
(`stored_files.py`).

The last three lines are for the tenant `default`. Other tenants have herd:<tenant>:celery-task-meta-<id>,
herd:<tenant>:celery-taskset-meta-<id> and herd.<tenant>:<model>. Messages in the hands of a worker of several
tenants are under herd:<tenant>+<tenant>:unacked.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

#: Names that scripts have for keys of other names.
_LONG_NAMES = {
    "deadlines": "pending:deadlines",
    "outbox_entries": "outbox:entries",
    "outbox_dead": "outbox:dead",
}


def joint_tenant(tenants: Collection[str]) -> str:
    """The combined name of several tenants: their names with a + between. No tenant's name has a +."""
    return "+".join(sorted(tenants))


def around_id(key_of: Callable[[str], str]) -> dict[str, str]:
    """What the keys of records have before and after an id, by the names that scripts have for these."""
    before, _, after = key_of("\0").partition("\0")
    return {"before": before, "after": after}


@dataclass(frozen=True)
class Keys:
    """The keys and channels of one tenant."""

    tenant: str = "default"

    def job_key(self, job_id: str) -> str:
        return f"herd:{self.tenant}:{{{job_id}}}:job"

    def events_key(self, job_id: str) -> str:
        return f"herd:{self.tenant}:{{{job_id}}}:events"

    def result_key(self, job_id: str) -> str:
        """Key of Celery's result of a job."""
        return f"{self.results_prefix}celery-task-meta-{job_id}"

    @property
    def results_prefix(self) -> str:
        """Prefix of Celery's result keys: the tenant, but nothing for the tenant `default`."""
        return "" if self.tenant == "default" else self.key("")

    def channel(self, job_id: str) -> str:
        """Channel on which a job's events are published."""
        return self.key(f"tokens:{job_id}")

    def notices_to(self, owner: str) -> str:
        """Channel on which a worker hears which of its jobs to end; `read_notice` parses its messages."""
        return self.key(f"ctl:{owner}")

    @property
    def notices_to_all(self) -> str:
        """Channel on which all workers hear that they should look whether they, or a queue, are paused."""
        return self.notices_to("all")

    @property
    def control_exchange(self) -> str:
        """Celery's exchange of remote control, by which clients revoke; that of any app for `default`."""
        return "celery" if self.tenant == "default" else self.key("control")

    @property
    def unacked_key(self) -> str:
        """Key of kombu's notes of messages that this tenant's workers have not acknowledged."""
        return self.key("unacked")

    def key(self, name: str) -> str:
        return f"herd:{self.tenant}:{name}"

    def line_key(self, list_name: str) -> str:
        """Key of the waiting jobs whose message is in this list of a queue."""
        return self.key(f"pending:{list_name}")

    def keys_named(self, *names: str) -> dict[str, str]:
        """Keys of the tenant, by the names that scripts have for them."""
        return {name: self.key(_LONG_NAMES.get(name, name)) for name in names}

    @property
    def ending_keys(self) -> dict[str, str]:
        """Keys of scripts that end jobs: the outbox, what ended jobs keep, and the lists of those."""
        return {**self.outbox_keys, **self.keys_named("kept", "ended", "failed")}

    @property
    def outbox_keys(self) -> dict[str, str]:
        """Keys of scripts that put an end into the outbox: what is wanted, what waits, its text, its dead."""
        return self.keys_named("webhook", "outbox", "outbox_entries", "outbox_dead")
