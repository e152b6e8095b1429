"""A run of chaos: jobs flow, faults strike one by one, and at the end every law is checked for every job."""

import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from llama_herd.local.worker_process import WorkerDied
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.chaos.harness.faults.fault import Fault
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.load_generator import LoadGenerator
from tests.chaos.harness.mix import mixed_jobs
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.plan import ChaosPlan
from tests.chaos.harness.recovery import recovery
from tests.chaos.harness.report import Blow, ChaosReport, ResourceSample
from tests.chaos.harness.text_models import write_text_models
from tests.chaos.harness.verdict import BrokenLaw, Verdict, Violation

#: Those that generate.
NUM_WORKERS = 2

#: Exit codes that workers of a run may have: killed by a fault, or stopped by one.
ALLOWED_EXIT_CODES = (None, 0, -signal.SIGKILL)

MIB = 1 << 20


class Progress(NamedTuple):
    """How far a run is. `doing`: the current fault, or another current step."""

    doing: str
    num_strikes: int
    num_jobs: int
    num_broken: int
    seconds: float


def run_chaos(plan: ChaosPlan, show: Callable[[Progress], None]) -> ChaosReport:
    """Break workers and a Redis of the run's own; `show` gets its progress.

    Two workers have the bundled model, and one each a tiny model that embeds or ranks.

    Raises WorkerDied or TimeoutError if the herd does not start. Whatever ends the run later, even Ctrl-C,
    there is a report of what was found so far.
    """
    with (
        tempfile.TemporaryDirectory(prefix="herd-chaos-") as logs,
        FragileRedis() as server,
        Herd(
            server,
            BUNDLED_MODEL,
            Path(logs),
            seed=plan.seed,
            text_models=write_text_models(Path(logs)),
            remote_control=True,
        ) as herd,
    ):
        return ChaosRun(herd, plan, show).run()


class ChaosRun:
    """Breaks a herd by plan, once."""

    def __init__(self, herd: Herd, plan: ChaosPlan, show: Callable[[Progress], None]) -> None:
        self._herd = herd
        self._plan = plan
        self._show = show
        self._started_s = monotonic()
        self._blows: list[Blow] = []
        self._samples: list[ResourceSample] = []
        self._misconduct: list[Violation] = []
        self._cut_short = ""

    def run(self) -> ChaosReport:
        """Let the faults strike while jobs flow, then check every job; report what was found in any case."""
        self._replace_dead_workers()
        plan, jobs = self._plan, self._herd.jobs
        mix = mixed_jobs(plan.seed, plan.max_tokens, list(self._herd.text_models))
        load = LoadGenerator(jobs, mix, plan.num_jobs)
        load.start()
        with self._going_on():
            self._strike_all()
            load.finish()
        verdict = Verdict.unknown(len(jobs.accepted))
        with self._going_on():
            load.stop()
            self._tell("the last jobs and the check")
            self._replace_dead_workers()
            verdict = self._herd.verdict()
        return ChaosReport(
            self._elapsed_s, self._blows, self._samples, self._misconduct, verdict, cut_short=self._cut_short
        )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Note whatever ends the block early, even Ctrl-C, and go on after it."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exc()
            self._cut_short = self._cut_short or ": ".join(filter(None, (type(error).__name__, str(error))))

    def _strike_all(self) -> None:
        for fault in self._plan.order():
            self._tell(fault.name)
            self._strike(fault)
            self._note_deaths()
            self._replace_dead_workers()
            self._note_resources()
            self._herd.server.rewrite_log()

    def _replace_dead_workers(self) -> None:
        """Start missing workers; one that does not come up is tried again after the next strike.

        Raises WorkerDied or TimeoutError if no worker is left.
        """
        for worker in self._herd.replenish(NUM_WORKERS + len(self._herd.text_models)):
            try:
                self._herd.wait_until_ready(worker)
            except (WorkerDied, TimeoutError) as error:
                worker.kill()
                self._herd.take_ended()
                self._misconduct.append(Violation("workers live", "", str(error)))
                if not self._herd.alive:
                    raise

    def _await_load(self) -> None:
        """Wait until each worker that generates runs jobs."""
        herd, running = self._herd, self._herd.jobs.running
        wait_until(lambda: all(running(worker.name) for worker in herd.generators), "every worker at work")

    def _strike(self, fault: Fault) -> None:
        """Let a fault strike while each worker runs jobs, and note how long these stand still."""
        try:
            self._await_load()
            at_s = self._elapsed_s
            with fault.strike(self._herd) as met:
                found = recovery(self._herd.jobs, met)
        except BrokenLaw as broken:
            self._misconduct.append(broken.violation)
        except (WorkerDied, TimeoutError) as error:
            self._misconduct.append(Violation("goes on", "", f"{fault.name}: {error}"))
        else:
            self._blows.append(Blow(fault.name, round(at_s, 1), len(met), found.seconds))
            self._misconduct += [
                Violation("goes on", job_id, f"stuck by {fault.name}") for job_id in found.stuck
            ]

    def _note_deaths(self) -> None:
        for worker in self._herd.take_ended():
            code = worker.process.returncode
            if code not in ALLOWED_EXIT_CODES:
                self._misconduct.append(Violation("workers live", "", f"{worker.name} ended with {code}"))

    def _note_resources(self) -> None:
        """Take a sample of what the largest worker and Redis hold."""
        worker = max(self._herd.alive, key=lambda worker: worker.rss_bytes)
        jobs = self._herd.jobs
        self._samples.append(
            ResourceSample(
                at_s=round(self._elapsed_s, 1),
                worker_mib=round(worker.rss_bytes / MIB, 1),
                worker_fds=worker.num_fds,
                worker_threads=worker.num_threads,
                redis_mib=round(jobs.redis.info("memory")["used_memory_rss"] / MIB, 1),
                redis_clients=jobs.redis.info("clients")["connected_clients"],
                redis_keys=round(jobs.redis.dbsize() / max(1, len(jobs.accepted)), 2),
            )
        )

    def _tell(self, doing: str) -> None:
        num_jobs, num_broken = len(self._herd.jobs.accepted), len(self._misconduct)
        self._show(Progress(doing, len(self._blows), num_jobs, num_broken, self._elapsed_s))

    @property
    def _elapsed_s(self) -> float:
        return monotonic() - self._started_s
