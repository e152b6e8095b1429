"""The command line. It chooses the card before torch is imported."""

import argparse
import gc
import sys
from pathlib import Path

import benchmarks.gpu
from llama_herd.errors import BadInput
from llama_herd.worker.loading.device import pin_device

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"

PARTS = ("W1", "W1q", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "static", "continuous")


def main() -> int:
    try:
        return _run(_parser().parse_args())
    except BadInput as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    device = pin_device("cpu" if arguments.dry_run or arguments.readme else arguments.device)
    from benchmarks.gpu.program import measure, write_readme

    if arguments.readme:
        write_readme(arguments.results or RESULTS, ROOT / "README.md")
        return 0
    gc.freeze()  # collections between models need not look at what was imported
    default_results = arguments.models / "dry-run.json" if arguments.dry_run else RESULTS
    return measure(
        device=device,
        is_dry=arguments.dry_run,
        names=arguments.only,
        models=arguments.models,
        results_path=arguments.results or default_results,
        commit=arguments.commit,
        with_profile=arguments.profile,
    )


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "benchmarks.gpu", description=benchmarks.gpu.__doc__, formatter_class=formatter
    )
    parser.add_argument("--device", default="cuda:0", help="cuda:N, N as nvidia-smi counts")
    parser.add_argument(
        "--only", type=_parts, default=set(PARTS), help=f"of {','.join(PARTS)}, with commas; absent: all"
    )
    parser.add_argument("--dry-run", action="store_true", help="all of it on the CPU with a tiny model")
    parser.add_argument(
        "--profile", action="store_true", help="say, beside the results, where a step's time goes"
    )
    parser.add_argument(
        "--models", type=Path, default=Path("/tmp/herd-models"), help="folder for the model files, 21 GB"
    )
    parser.add_argument(
        "--results", type=Path, help="the JSON file to add to; absent: benchmarks/results/gpu.json"
    )
    parser.add_argument("--commit", default="", help="which commit this is, where git cannot say it")
    parser.add_argument(
        "--readme", action="store_true", help="put the table into README.md and measure nothing"
    )
    return parser


def _parts(text: str) -> set[str]:
    names = set(text.split(","))
    if unknown := names - set(PARTS):
        raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
