"""Where the time of a decode step goes: kernels on the device, gaps between them, the host's operations."""

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.ceilings import wait_for
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import start
from benchmarks.timed_engine import TimedEngine
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

#: Lines of each table.
NUM_SHOWN = 14


@dataclass(frozen=True)
class Cost:
    """One kernel or operation, in all steps together."""

    name: str
    num_calls: int
    seconds: float


@dataclass(frozen=True)
class StepProfile:
    """Some decode steps. The profiler slows the host, so `wall_s` is longer than without it."""

    num_rows: int
    num_steps: int
    wall_s: float
    kernels: list[Cost]  # on the device, most expensive first; on a CPU its operations
    operations: list[Cost]  # on the host

    @property
    def busy_s_per_step(self) -> float:
        """Time in which the device computes; it has one stream, so kernels never overlap."""
        return sum(kernel.seconds for kernel in self.kernels) / self.num_steps

    @property
    def launches_per_step(self) -> float:
        return sum(kernel.num_calls for kernel in self.kernels) / self.num_steps

    def text(self) -> str:
        """Two short tables."""
        wall_ms, busy_ms = 1000 * self.wall_s / self.num_steps, 1000 * self.busy_s_per_step
        head = (
            f"{self.num_rows} rows, {self.num_steps} steps under the profiler: a step {wall_ms:.2f} ms, "
            f"device busy {busy_ms:.2f} ms, gaps {wall_ms - busy_ms:.2f} ms, "
            f"{self.launches_per_step:.0f} kernels"
        )
        device = self._table("on the device", self.kernels)
        return "\n".join([head, *device, *self._table("on the host", self.operations), ""])

    def _table(self, title: str, costs: list[Cost]) -> Iterable[str]:
        total_s = sum(cost.seconds for cost in costs) or 1.0
        yield f"  {'ms a step':>9}  {'share':>5}  {'calls':>6}  {title}"
        for cost in costs[:NUM_SHOWN]:
            milliseconds, calls = 1000 * cost.seconds / self.num_steps, cost.num_calls / self.num_steps
            yield f"  {milliseconds:9.3f}  {cost.seconds / total_s:5.0%}  {calls:6.0f}  {cost.name[:90]}"


def profile_decode(model: LoadedModel, settings: WorkerSettings, load: Load, num_steps: int) -> StepProfile:
    """Profile `num_steps` steps of a load once all of its rows decode; the model is of no use after it."""
    engine = TimedEngine(model, settings)
    trace = start(engine, load, seed=-3)
    while len(trace.token_s) < load.num_requests:
        engine.step()
    device = model.cache.device
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as profiler:
        started = perf_counter()
        for _ in range(num_steps):
            engine.step()
        wait_for(device)
        wall_s = perf_counter() - started
    events = list(profiler.key_averages())
    operations = _costs(
        (e.key, e.count, e.self_cpu_time_total) for e in events if e.device_type.name == "CPU"
    )
    kernels = _costs(
        (e.key, e.count, e.self_device_time_total) for e in events if e.device_type.name == "CUDA"
    )
    return StepProfile(load.num_rows, num_steps, wall_s, kernels or operations, operations)


def _costs(entries: Iterable[tuple[str, int, float]]) -> list[Cost]:
    costs = [Cost(name, num_calls, microseconds / 1e6) for name, num_calls, microseconds in entries]
    return sorted(costs, key=lambda cost: cost.seconds, reverse=True)
