"""The command line. It chooses the card before torch is imported."""

import argparse
import sys
from pathlib import Path

import benchmarks.gpu
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.plan import CALL_S, planned
from benchmarks.gpu.step import EXIT_NOT_HERE, NotHere
from benchmarks.gpu.unattended import Unattended, python

MODELS = Path("/tmp/herd-models")


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.what == "step":
        return _step(arguments)
    if arguments.what == "report":
        from benchmarks.gpu.report import print_report

        return print_report(arguments.folders, is_written=arguments.write)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    journal = Journal(arguments.out)
    options = ["--out", str(arguments.out.resolve()), "--models", str(arguments.models)]
    options += [f"--after={folder.resolve()}" for folder in arguments.after]
    if arguments.llama_cpp is not None:
        options += ["--llama-cpp", str(arguments.llama_cpp.resolve())]
    command = python("-m", "benchmarks.gpu", *["--rehearse"] * arguments.rehearse, *options)
    journal.add("run", run=arguments.what, commit=arguments.commit, is_rehearsed=arguments.rehearse)
    steps = planned([Journal(folder) for folder in arguments.after])
    Unattended(journal, arguments.out / f"{arguments.what}.txt", command, arguments.seconds).run(steps)
    return 0


def _step(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.steps import StepOptions, run

    options = StepOptions(
        name=arguments.name,
        words=tuple(arguments.words),
        journal=Journal(arguments.out),
        after=tuple(map(Journal, arguments.after)),
        is_rehearsed=arguments.rehearse,
        is_short=arguments.short,
        format=arguments.format,
        off=tuple(arguments.without.split(",")) if arguments.without else (),
        models=arguments.models,
        llama_cpp=arguments.llama_cpp,
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
    _add_common(parser, is_first=True)
    kinds = parser.add_subparsers(dest="what", required=True)
    whole = kinds.add_parser("whole", help="all that is not known yet, the most telling first")
    whole.add_argument("--seconds", type=float, default=CALL_S, help="that all of it may take")
    whole.add_argument("--commit", default="", help="which commit this is, where git cannot say it")
    _add_common(whole)
    step = kinds.add_parser("step", help="one step, in this process")
    step.add_argument("name")
    step.add_argument("words", nargs="*")
    step.add_argument("--format", default="BF16", choices=("BF16", "Q8_0", "Q4_0", "Q4_K_M"))
    step.add_argument("--without", default="", help="choices that are switched off, with commas")
    step.add_argument("--short", action="store_true", help="one run, and no times of kernels")
    _add_common(step)
    report = kinds.add_parser("report", help="the table of all results")
    report.add_argument("folders", type=Path, nargs="+")
    report.add_argument("--write", action="store_true", help="put it into docs/measured.md")
    return parser


def _add_common(parser: argparse.ArgumentParser, *, is_first: bool = False) -> None:
    """They may stand before or after the name of what is run."""

    def add(name: str, default: object, help: str, **options: object) -> None:
        parser.add_argument(name, default=default if is_first else argparse.SUPPRESS, help=help, **options)  # type: ignore[arg-type]

    add("--rehearse", False, "all of it on the CPU, tiny: no figures", action="store_true")
    add("--out", Path("/tmp/herd-gpu"), "folder of the results", type=Path)
    add("--models", MODELS, "folder of model files, 17 GB", type=Path)
    add(
        "--after",
        [],
        "folders of calls before: what ended well there is known",
        type=Path,
        nargs="+",
        action="extend",
    )
    add("--llama-cpp", None, "folder of llama-bench, llama-batched-bench and their libraries", type=Path)


if __name__ == "__main__":
    sys.exit(main())
