"""The command line. It chooses the card before torch is imported."""

import argparse
import sys
from pathlib import Path

import benchmarks.gpu
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.plans import PLANS, TOTAL_S, planned
from benchmarks.gpu.step import EXIT_NOT_HERE, NotHere
from benchmarks.gpu.unattended import Unattended, python

MODELS = Path("/tmp/herd-models")


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.what == "step":
        return _step(arguments)
    if arguments.what == "report":
        from benchmarks.gpu.report import print_report

        return print_report(arguments.folders)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    journal = Journal(arguments.out)
    options = ["--out", str(arguments.out.resolve()), "--models", str(arguments.models)]
    command = python("-m", "benchmarks.gpu", *([] if not arguments.rehearse else ["--rehearse"]), *options)
    steps = planned(arguments.what, [Journal(folder) for folder in arguments.after])
    journal.add("run", run=arguments.what, commit=arguments.commit, is_rehearsed=arguments.rehearse)
    Unattended(journal, arguments.out / f"{arguments.what}.txt", command, arguments.seconds).run(steps)
    return 0


def _step(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.steps import StepOptions, run

    options = StepOptions(
        name=arguments.name,
        words=tuple(arguments.words),
        journal=Journal(arguments.out),
        is_rehearsed=arguments.rehearse,
        is_short=arguments.short,
        format=arguments.format,
        off=tuple(arguments.without.split(",")) if arguments.without else (),
        models=arguments.models,
    )
    try:
        return run(options)
    except NotHere as reason:
        print(reason)
        return EXIT_NOT_HERE


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "benchmarks.gpu", description=benchmarks.gpu.__doc__, formatter_class=formatter
    )
    parser.add_argument("--rehearse", action="store_true", help="all of it on the CPU, tiny: no figures")
    parser.add_argument("--out", type=Path, default=Path("/tmp/herd-gpu"), help="folder of the results")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of model files, for W6 21 GB")
    kinds = parser.add_subparsers(dest="what", required=True)
    for name, plan in PLANS.items():
        run = kinds.add_parser(name, help=(plan.__doc__ or "").splitlines()[0])
        run.add_argument("--after", type=Path, nargs="*", default=[], help="folders of runs before this one")
        run.add_argument("--seconds", type=float, default=TOTAL_S, help="that all of it may take")
        run.add_argument("--commit", default="", help="which commit this is, where git cannot say it")
        _add_common(run)
    step = kinds.add_parser("step", help="one step, in this process")
    step.add_argument("name")
    step.add_argument("words", nargs="*")
    step.add_argument("--format", default="BF16", choices=("BF16", "Q8_0", "Q4_0", "Q4_K_M"))
    step.add_argument("--without", default="", help="choices that are switched off, with commas")
    step.add_argument("--short", action="store_true", help="fewer tokens and one run")
    _add_common(step)
    report = kinds.add_parser("report", help="the table of all results")
    report.add_argument("folders", type=Path, nargs="+")
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    """They may stand before or after the name of what is run."""
    absent = argparse.SUPPRESS
    parser.add_argument("--rehearse", action="store_true", default=absent, help=absent)
    parser.add_argument("--out", type=Path, default=absent, help=absent)
    parser.add_argument("--models", type=Path, default=absent, help=absent)


if __name__ == "__main__":
    sys.exit(main())
