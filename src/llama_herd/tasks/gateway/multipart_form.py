"""A multipart form, read as it comes: some short fields, and one file whose bytes are passed on."""

from collections.abc import Mapping

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from llama_herd.tasks.gateway.problem import Problem, bad_request

#: Fields of a form, and bytes of one.
MAX_FIELDS, MAX_FIELD_BYTES = 16, 1024
MAX_NAME_CHARS = 255
#: By RFC 2046.
MAX_BOUNDARY_BYTES = 70


class MultipartForm:
    """A parser: `feed` it with the body piece by piece, then `check_complete`, then use `fields`.

    filename: of the file; None until it has come. fields: the others, by name.
    """

    def __init__(self, content_type: str) -> None:
        """Raises Problem if the content type is not that of a form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data":
            raise bad_request("the body must be multipart/form-data with a file", "invalid_form")
        if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES:
            message = f"the boundary must be 1 to {MAX_BOUNDARY_BYTES} bytes long, got {len(boundary)}"
            raise bad_request(message, "invalid_form", "Content-Type")
        self.filename: str | None = None
        self.fields: dict[str, str] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._part_data,
                "on_end": self._end_form,
            },
        )
        self._is_over = False
        self._is_file = False
        self._name = ""
        self._num_parts = 0
        self._file = bytearray()
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}

    def feed(self, body: bytes) -> bytes:
        """Read a part of the body. Returns the bytes of the file in it. Raises Problem."""
        try:
            self._parser.write(body)
        except FormParserError:
            raise _incomplete_form() from None
        found = bytes(self._file)
        self._file.clear()
        return found

    def check_complete(self) -> None:
        """Raises Problem if the form is not whole, or has no file."""
        if not self._is_over:
            raise _incomplete_form()
        if self.filename is None:
            raise bad_request("must be a file", "missing_file", "file")

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise bad_request(f"the form must have at most {MAX_FIELDS} fields", "invalid_form")
        self._headers = {}
        self._header = (bytearray(), bytearray())

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = _text(options, b"name")
        self._is_file = self._name == "file"
        if not self._is_file:
            if self._name in self.fields:
                raise bad_request("must not be given twice", "invalid_form", _shown_name(self._name))
            self.fields[self._name] = ""
        elif self.filename is not None:
            raise bad_request("must be one file", "invalid_form", "file")
        else:
            self.filename = _printable(_text(options, b"filename")) or "file"

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._file += data[start:end]
            return
        text = self.fields[self._name] + data[start:end].decode(errors="replace")
        if len(text) > MAX_FIELD_BYTES:
            raise bad_request(
                f"must be at most {MAX_FIELD_BYTES} bytes long", "invalid_form", _shown_name(self._name)
            )
        self.fields[self._name] = text

    def _end_form(self) -> None:
        self._is_over = True


def _incomplete_form() -> Problem:
    return bad_request("the form is not whole", "invalid_form")


def _text(options: Mapping[bytes, bytes], name: bytes) -> str:
    return options.get(name, b"").decode(errors="replace")


def _printable(name: str) -> str:
    """A file's name as it can be shown anywhere. It is never part of a path."""
    return "".join(char for char in name if char.isprintable())[:MAX_NAME_CHARS]


def _shown_name(name: str) -> str:
    return name if name.isidentifier() and len(name) <= 64 else "?"
