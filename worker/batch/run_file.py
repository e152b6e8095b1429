"""The file beside the output that makes the same command a continuation: which run of which input it is."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from llama_herd.errors import BadInput
from llama_herd.worker.batch.source import STDIN


@dataclass(frozen=True)
class RunFile:
    """A run's id, what it reads, and the options that change its results."""

    run_id: str
    input_name: str
    input_bytes: int | None
    options: Mapping[str, Any]

    @classmethod
    def open(cls, output: Path, input_name: str, options: Mapping[str, Any], *, has_answers: bool) -> Self:
        """The run that `output` belongs to, or a new one while that has no answers.

        Raises BadInput when it has some, and belongs to another run or to none.
        """
        path = run_path(output)
        is_stdin = input_name == STDIN
        asked = cls(
            run_id=secrets.token_hex(6),
            input_name=input_name if is_stdin else Path(input_name).name,
            input_bytes=None if is_stdin else os.stat(input_name).st_size,
            options=options,
        )
        try:
            known = cls._read(path, output)
            known._check(asked, output)
        except BadInput:
            if has_answers:
                raise
            asked._write(path)
            return asked
        return known

    @classmethod
    def _read(cls, path: Path, output: Path) -> Self:
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            raise BadInput(
                f"{output} is there, but not {path}, by which it could be continued. "
                "Fix: take another -o, or move it away"
            ) from None

    def _check(self, asked: "RunFile", output: Path) -> None:
        """Raise BadInput when `asked` differs from this run in more than its id."""
        mine, other = asdict(self), asdict(asked)
        for name in ("input_name", "input_bytes"):
            if mine[name] != other[name]:
                raise BadInput(
                    f"{output} was begun with {name} {mine[name]}, but now it is {other[name]}. "
                    "Fix: give the same input, or take another -o"
                )
        changed = sorted(
            name
            for name in self.options.keys() | asked.options.keys()
            if self.options.get(name) != asked.options.get(name)
        )
        if changed:
            raise BadInput(
                f"{output} was begun with other options: {', '.join(changed)}. "
                "Fix: give the same ones, or take another -o"
            )

    def _write(self, path: Path) -> None:
        """Whole or not at all: it is there before the first answer is."""
        draft = path.with_name(f"{path.name}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None


def run_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.run")


def errors_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.errors.jsonl")
