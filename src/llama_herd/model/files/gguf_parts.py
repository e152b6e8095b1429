"""A GGUF model in one file, or in the parts that gguf-split makes of it, such as x-00001-of-00003.gguf."""

import re
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Self

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.files.gguf_header import MAX_TENSORS, TensorInfo
from llama_herd.model.files.tensor_file import StoredRows
from llama_herd.model.reading.file_errors import quoted

MAX_PARTS = 256

NUMBER_KEY = "split.no"  # from 0 on
COUNT_KEY = "split.count"
TENSORS_KEY = "split.tensors.count"  # in all parts

_PART_NAME = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFParts:
    """All tensors of a model; what it says about itself stands in its first part."""

    def __init__(self, files: list[GGUFFile]) -> None:
        self.path, self.metadata = files[0].path, files[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._holders: dict[str, GGUFFile] = {}
        self._files = files
        for file in files:
            self._add(file)
        if len(files) > 1:
            stated = self.metadata.integer(TENSORS_KEY, 0, MAX_TENSORS)
            if stated != len(self.tensors):
                problem = f"is {stated}, but its {len(files)} parts hold {len(self.tensors)} tensors"
                raise self.metadata.error(TENSORS_KEY, problem)

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a model by any of its parts. Raises ModelFileError, which names the part that is bad."""
        path = Path(path)
        with ExitStack() as stack:
            asked = GGUFFile.open(path)
            stack.callback(asked.close)
            files = []
            for part in _part_paths(asked):
                file = asked if part == path else GGUFFile.open(part)
                stack.callback(file.close)
                files.append(file)
            for number, file in enumerate(files):
                _check_part(file, number, len(files))
            opened = cls(files)
            stack.pop_all()
            return opened

    def rows(self, name: str) -> StoredRows:
        """A tensor's rows, to be read while the files are open."""
        return self._holders[name].rows(name)

    def close(self) -> None:
        """Give up the files; what has been read of them stays good."""
        for file in self._files:
            file.close()

    def _add(self, file: GGUFFile) -> None:
        for name, info in file.tensors.items():
            if name in self.tensors:
                first = self._holders[name].path.name
                raise ModelFileError(
                    f"{file.path}: tensor {quoted(name)} is in {first} as well. Fetch both again."
                )
            self.tensors[name], self._holders[name] = info, file


def _part_paths(file: GGUFFile) -> list[Path]:
    """The files that a model consists of, by the one of them that was asked for."""
    count = file.metadata.integer(COUNT_KEY, 0, MAX_PARTS, 1)
    if count <= 1:
        return [file.path]
    match = _PART_NAME.fullmatch(file.path.name)
    if match is None or int(match["count"]) != count:
        number = file.metadata.integer(NUMBER_KEY, 0, MAX_PARTS) + 1
        needed = f"-{number:05}-of-{count:05}.gguf"
        raise ModelFileError(
            f"{file.path}: one of {count} parts of a model: its name must end in {needed}. Rename it."
        )
    paths = [file.path.with_name(f"{match['model']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    for path in paths:
        if not path.exists():
            raise ModelFileError(
                f"{path}: missing, {file.path.name} is one of {count} parts. Fetch it as well: "
                f"hf download OWNER/NAME {path.name} --local-dir {path.parent}."
            )
    return paths


def _check_part(file: GGUFFile, number: int, count: int) -> None:
    """Raise ModelFileError unless a file says that it is the part that its name says."""
    if count == 1:
        return
    found = file.metadata.integer(NUMBER_KEY, 0, MAX_PARTS), file.metadata.integer(COUNT_KEY, 0, MAX_PARTS)
    if found != (number, count):
        problem = f"is {found[0]} of {found[1]}, {number} of {count} by the file's name"
        raise file.metadata.error(NUMBER_KEY, problem)
