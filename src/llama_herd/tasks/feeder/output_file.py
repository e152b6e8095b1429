"""Makes the output and the error file of a batch from its parts."""

import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

from llama_herd.tasks.feeder.answer_parts import AnswerParts, PartKind
from llama_herd.tasks.ledger.stored_files import OUTPUT, NewFile
from llama_herd.tasks.storage.storage import Storage, StoragePlace

#: The tokens of a line. A text that says the same has its quotes escaped.
_USAGE = re.compile(rb'"usage":\{"prompt_tokens":(\d{1,15}),"completion_tokens":(\d{1,15}),')

#: Bytes that are written together.
_PIECE_BYTES = 1 << 20


class OutputFile(NamedTuple):
    """A file, and the tokens that its lines tell of."""

    file: NewFile
    prompt_tokens: int
    completion_tokens: int


def output_file_id(parts: AnswerParts, kind: PartKind) -> str:
    """The id of a file that this feeder makes. Another feeder makes another one: nothing is written over."""
    name = f"{parts.record.id}/{kind}/{parts.record.epoch}"
    return f"file-{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def write_output_file(
    parts: AnswerParts,
    kind: PartKind,
    storage: Storage,
    place: StoragePlace,
    yield_turn: Callable[[], object],
) -> OutputFile:
    """Write all lines of a kind into a file at `place`. yield_turn: is called after each line."""
    prompt_tokens, completion_tokens = 0, 0
    with storage.draft(place) as draft:
        piece = bytearray()
        for line in parts.lines(kind):
            if (found := _USAGE.search(line)) is not None:
                prompt_tokens += int(found[1])
                completion_tokens += int(found[2])
            piece += line
            yield_turn()
            if len(piece) >= _PIECE_BYTES:
                draft.write(bytes(piece))
                piece.clear()
        draft.write(bytes(piece))
        draft.keep()
        num_bytes = draft.num_bytes
    name = f"{parts.record.id}_{kind}.jsonl"
    file = NewFile(place.name, name, OUTPUT, num_bytes, parts.record.request.owner)
    return OutputFile(file, prompt_tokens, completion_tokens)
