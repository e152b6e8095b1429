"""Every Redis key there is, and nothing but their names.

herd:<tenant>:{<id>}:job      hash    the record: state, owner, lease, epoch, seq, n, body, envelope ...
herd:<tenant>:{<id>}:events   stream  the events, entry id <seq>-0, field e
herd:<tenant>:tokens:<id>     channel the same events as they come
herd:<tenant>:pending         zset    jobs that wait, by the time they were accepted or are due
herd:<tenant>:delayed         zset    those of them whose time has not come, by the time when it does
herd:<tenant>:waiting         hash    <queue>:jobs, :tokens, :delayed that wait; :taken since <queue>:since
herd:<tenant>:leases          zset    jobs that run, by the end of their lease
herd:<tenant>:quarantine      zset    jobs that were given up, by when
herd:<tenant>:ctl             channel notices of cancelled jobs to the workers
herd:<tenant>:worker:<name>   hash    how a worker is
herd:<tenant>:workers         zset    their names, by when they are forgotten
herd:<tenant>:batch:<run>     hash    how a batch is
herd:<tenant>:batches         zset    their runs, by when they are forgotten
herd:<tenant>:dead            stream  messages that could not be accepted
herd:<tenant>:sweep           hash    when the last sweep was
herd:<tenant>:unacked         hash    Celery's: messages that workers hold; ..._index, ..._mutex: since when
_kombu.binding.<queue>        set     Celery's: that there is such a queue; _kombu.binding_permanent.<queue>
celery-task-meta-<id>         string  Celery's: the result
celery-taskset-meta-<id>      string  Celery's: a group; ....j, ....t, ....s, ....c of a chord
herd.<model>                  lists   Celery's: the queue of a model; see llama_herd.tasks.priority

The last three are those of tenant `default`; another's are herd:<tenant>:celery-task-meta-<id>, the next in
the same way, and herd.<tenant>:<model>. What the workers of several tenants hold stands under all their
names, joined by +.
"""

from collections.abc import Collection
from dataclasses import dataclass


def joined(tenants: Collection[str]) -> str:
    """What stands for several tenants where one's name would; no tenant has a + in its own."""
    return "+".join(sorted(tenants))


@dataclass(frozen=True)
class Keys:
    """The keys and channels of one tenant."""

    tenant: str = "default"

    def job_key(self, job_id: str) -> str:
        return self.key(f"{{{job_id}}}:job")

    def events_key(self, job_id: str) -> str:
        return self.key(f"{{{job_id}}}:events")

    def result_key(self, job_id: str) -> str:
        """Where Celery keeps a job's result."""
        return f"{self.results_prefix}celery-task-meta-{job_id}"

    @property
    def results_prefix(self) -> str:
        """What Celery's names of results begin with: the tenant, but for the one that needs no setting."""
        return "" if self.tenant == "default" else self.key("")

    def channel(self, job_id: str) -> str:
        """Where a job's events are published."""
        return self.key(f"tokens:{job_id}")

    @property
    def control_channel(self) -> str:
        """Where workers hear of cancelled jobs; `read_notice` reads what comes."""
        return self.key("ctl")

    @property
    def unacked_key(self) -> str:
        """Where kombu keeps what this tenant's workers have not acknowledged."""
        return self.key("unacked")

    def key(self, name: str) -> str:
        return f"herd:{self.tenant}:{name}"

    def job_keys(self, job_id: str) -> tuple[str, ...]:
        """What the scripts on one job begin with: its own keys, and those that list it while it lives."""
        return (
            self.job_key(job_id),
            self.events_key(job_id),
            self.key("pending"),
            self.key("delayed"),
            self.key("leases"),
            self.key("waiting"),
        )
