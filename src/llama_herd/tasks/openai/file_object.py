"""OpenAI's objects of files."""

from typing import Literal, Self

from pydantic import Field

from llama_herd.tasks.ledger.stored_files import StoredFile
from llama_herd.tasks.openai.answer_schema import AnswerModel, ObjectList


class FileObject(AnswerModel):
    """A file."""

    id: str = Field(description="Its id.")
    object: Literal["file"] = Field(default="file", description="Always `file`.")
    bytes: int = Field(description="Its length.")
    created_at: int = Field(description="When it was stored, in unix seconds.")
    expires_at: int | None = Field(description="When it is deleted, in unix seconds; null: never.")
    filename: str = Field(description="Its name, as the client said.")
    purpose: Literal["batch", "batch_output"] = Field(description="Input of batches, or made of answers.")
    status: Literal["processed"] = Field(default="processed", description="Always `processed`.")
    status_details: None = Field(default=None, description="Always null.")

    @classmethod
    def from_file(cls, file: StoredFile) -> Self:
        return cls(
            id=file.id,
            bytes=file.num_bytes,
            created_at=file.created_ms // 1000,
            expires_at=None if file.expires_ms is None else file.expires_ms // 1000,
            filename=file.name,
            purpose=file.purpose,
        )


class FileList(ObjectList):
    """A page of files."""

    data: tuple[FileObject, ...] = Field(description="The files.")


class FileDeleted(AnswerModel):
    """The answer to the deletion of a file."""

    id: str = Field(description="Its id.")
    object: Literal["file"] = Field(default="file", description="Always `file`.")
    deleted: Literal[True] = Field(default=True, description="Always true.")
