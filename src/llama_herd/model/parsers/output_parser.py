"""Reads one output as it comes."""

from collections.abc import Collection

from llama_herd.model.parsers.delta import Delta
from llama_herd.model.parsers.output_formats import OutputFormats


class OutputParser:
    """Takes an output apart into reasoning, content and calls.

    However the output is cut into pieces, the joined deltas are the same.
    """

    def __init__(
        self,
        formats: OutputFormats,
        tool_names: Collection[str] = (),
        *,
        begins_in_reasoning: bool = False,
    ) -> None:
        """Without `tool_names` calls are content like any other text."""

    def write(self, text: str) -> Delta:
        """What the next piece adds."""
        return Delta(content=text)

    def close(self) -> Delta:
        """What was withheld; call once, after the last piece."""
        return Delta()
