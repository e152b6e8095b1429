"""All faults by name, as the harness and the tests beside it use them."""

import signal

from tests.chaos.harness.faults import (
    clocks,
    death,
    early_ends,
    failover,
    leaving,
    long_waits,
    messages,
    network,
    redis_faults,
    standstill,
    subscribers,
    tenants,
)
from tests.chaos.harness.faults.fault import Fault

_ALL = (
    Fault("kill", death.kill_worker, "kill -9 of the worker with the most jobs"),
    Fault("kill-prefill", death.dying("prefill"), "a worker dies while it computes a prompt"),
    Fault("kill-result", death.dying("before_result"), "a worker dies between final event and result"),
    Fault("kill-ack", death.dying("before_ack"), "a worker dies between result and acknowledgement"),
    Fault("kill-pop", death.dying("popped"), "a worker dies with a message just taken from the queue"),
    Fault("kill-texts", death.kill_text_worker, "kill -9 of the only worker that embeds, or that ranks"),
    Fault(
        "kill-frozen", standstill.die_waiting, "workers freeze while they wait, messages come, and they die"
    ),
    Fault(
        "poison", death.poison, "a job kills its workers: when prepared, before a forward or after a token"
    ),
    Fault("freeze", standstill.freeze, "SIGSTOP for longer than a lease, then SIGCONT"),
    Fault(
        "stop", leaving.stopping(signal.SIGTERM, grace_s=1.0), "SIGTERM: a worker has one second to finish"
    ),
    Fault(
        "stop-twice",
        leaving.stopping(signal.SIGTERM, signal.SIGTERM),
        "SIGTERM twice: a worker hands over its jobs",
    ),
    Fault("quit", leaving.stopping(signal.SIGQUIT), "SIGQUIT: a worker hands over its jobs at once"),
    Fault("rolling", leaving.rolling, "all workers are replaced, one after the other, while 100 jobs wait"),
    Fault("redis-kill", redis_faults.kill_redis, "kill -9 of Redis, started again on its append-only file"),
    Fault("redis-away", redis_faults.redis_away, "Redis is gone for longer than a lease"),
    Fault("redis-pause", redis_faults.pause_redis, "Redis stands still for longer than a lease"),
    Fault("redis-flush", redis_faults.flush_scripts, "Redis forgets its scripts"),
    Fault("redis-rollback", redis_faults.roll_back, "Redis loses its last writes, as in a power failure"),
    Fault("redis-full", redis_faults.fill_redis, "Redis is at maxmemory"),
    Fault("disk-full", redis_faults.fill_disk, "Redis cannot write its append-only file"),
    Fault(
        "failover",
        failover.failover,
        "the primary is lost with its last writes, and a Sentinel promotes a replica",
    ),
    Fault("reset", network.reset, "connections are reset"),
    Fault("cut", network.cut_replies, "replies are lost though their commands ran"),
    Fault("black-hole", network.black_hole, "connections stay open, but nothing arrives"),
    Fault("slow", network.slow, "the network takes 100 ms each way"),
    Fault("crawl", network.crawl, "the network delivers byte by byte"),
    Fault("malformed", messages.malformed, "hundreds of malformed messages"),
    Fault("hostile", messages.hostile, "malicious messages of every known kind"),
    Fault("mischief", tenants.mischief, "a tenant damages its own keys, in a worker that also serves others"),
    Fault("cancel", early_ends.cancel_jobs, "jobs are cancelled at every stage"),
    Fault("revoke", early_ends.revoke_jobs, "Celery revokes jobs at every stage"),
    Fault("expire", early_ends.expire_jobs, "deadlines pass at every stage of a job"),
    Fault("subscribers", subscribers.stuck_crowd, "50 subscribers to everything that never read"),
    Fault("subscribers-slow", subscribers.slow_crowd, "50 subscribers that read a few bytes now and then"),
    Fault(
        "subscribers-flap", subscribers.flapping_crowd, "50 subscribers that come, read a little and leave"
    ),
    Fault("long-job", long_waits.long_jobs, "jobs run for longer than a worker's patience with messages"),
    Fault("backlog", long_waits.backlog, "160 jobs wait for so long that the sweep looks for lost messages"),
    Fault("clock-ahead", clocks.skewed(clocks.HOUR_S), "a worker's clock is an hour ahead"),
    Fault("clock-behind", clocks.skewed(-clocks.HOUR_S), "a worker's clock is an hour behind"),
)

FAULTS = {fault.name: fault for fault in _ALL}
