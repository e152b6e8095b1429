"""How long jobs stand still after each fault, and whether anything is lost.

    python -m benchmarks.chaos SCHEDULE [--minutes M] [--write]

The schedules lie in worker/chaos/schedules. Exit code 0 when no law was broken.
"""

import argparse
import json
from pathlib import Path

from benchmarks.conditions import conditions
from llama_herd.worker.chaos.plan import Plan, strikes_of
from llama_herd.worker.chaos.run import run
from llama_herd.worker.chaos.screen import progress, show

RESULT = Path(__file__).parent / "results" / "chaos.json"

NUM_JOBS, MAX_TOKENS, SEED = 100, 150, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("schedule")
    parser.add_argument("--minutes", type=float, default=0.0, help="again until so much time is over")
    parser.add_argument("--write", action="store_true", help="write the report")
    arguments = parser.parse_args()
    plan = Plan(strikes_of([], arguments.schedule), NUM_JOBS, MAX_TOKENS, SEED, arguments.minutes)
    with progress() as tell:
        report = run(plan, tell)
    show(report)
    if arguments.write:
        found = {"benchmark": "chaos", "schedule": arguments.schedule, "seed": SEED} | report.to_dict()
        RESULT.write_text(json.dumps(found | {"conditions": conditions()}, indent=2) + "\n")
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
