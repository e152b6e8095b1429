"""The file beside the output by which the same command continues a run: its id, input and options."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from llama_herd.cli.batch.plan import BatchPlan
from llama_herd.cli.batch.source import STDIN
from llama_herd.errors import BadInput


@dataclass(frozen=True)
class RunFile:
    """A run's id, what it reads, and the options that change its results."""

    run_id: str
    input_name: str
    input_bytes: int | None
    options: Mapping[str, Any]

    @classmethod
    def open(cls, plan: BatchPlan) -> Self:
        """The run that the plan's output belongs to, or a new one if the output has no answers.

        Raises BadInput if it has answers of another run, or of an unknown one.
        """
        asked = cls._from_plan(plan)
        try:
            known = cls._read(plan)
            known._check(asked, plan.output)
        except BadInput:
            if plan.has_answers:
                raise
            asked._write(plan.run_file)
            return asked
        return known

    @classmethod
    def _from_plan(cls, plan: BatchPlan) -> Self:
        is_stdin = plan.input_name == STDIN
        return cls(
            run_id=secrets.token_hex(6),
            input_name=STDIN if is_stdin else Path(plan.input_name).name,
            input_bytes=None if is_stdin else os.stat(plan.input_name).st_size,
            options=plan.result_options,
        )

    @classmethod
    def _read(cls, plan: BatchPlan) -> Self:
        try:
            return cls(**json.loads(plan.run_file.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            raise BadInput(
                f"{plan.output} has answers, but {plan.run_file}, which is needed to continue, is missing or "
                "damaged. Fix: choose another -o, or move the answers away"
            ) from None

    def _check(self, asked: "RunFile", output: Path) -> None:
        """Raise BadInput if `asked` differs from this run in more than its id."""
        for name, mine, other in (
            ("input", self.input_name, asked.input_name),
            ("size of the input", self.input_bytes, asked.input_bytes),
        ):
            if mine != other:
                raise BadInput(
                    f"{output} was begun with another {name}: {mine}, and now it is {other}. "
                    "Fix: give the same input, or choose another -o"
                )
        names = self.options.keys() | asked.options.keys()
        changed = sorted(name for name in names if self.options.get(name) != asked.options.get(name))
        if changed:
            raise BadInput(
                f"{output} was begun with other options: {', '.join(changed)}. "
                "Fix: give the same ones, or choose another -o"
            )

    def _write(self, path: Path) -> None:
        """Write the file whole or not at all, before the first answer."""
        draft = path.with_name(f"{path.name}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None
