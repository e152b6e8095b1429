"""One request to the hub: its answer is checked by its head, and read no further than it is used."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from llama_herd.errors import HerdError, HubUnavailable, ModelFileError

#: A hub that sends fewer bytes in that time has stopped answering.
SLOW_BYTES, SLOW_S = 65_536, 60.0

_PARTIAL, _OK, _NO_SUCH_RANGE, _BUSY = 206, 200, 416, (408, 429)


class AskAgain(HubUnavailable):
    """The hub may have what is wanted when it is asked again."""


@contextmanager
def answer_of(url: str, *, begin: int = 0) -> Iterator[Any]:
    """The hub's answer, whose body is still to be read, from byte `begin` on or from its first.

    The hub may say that it has no byte `begin`. Raises what huggingface_hub raises, and HubUnavailable.
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import get_session, hf_raise_for_status

    # Not the hub's own headers: to make them it asks the hub for a list, and keeps whatever comes.
    headers = {"User-Agent": "llama-herd", "Accept-Encoding": "identity"}
    if (token := get_token()) is not None:
        headers["Authorization"] = f"Bearer {token}"
    if begin:
        headers["Range"] = f"bytes={begin}-"
    seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=seconds) as answer:
        status = answer.status_code
        if status in _BUSY:
            raise AskAgain(f"{constants.ENDPOINT} is busy. Fix: try again later")
        if status == _NO_SUCH_RANGE and begin:
            yield answer
            return
        if status >= 400:  # by its head alone: the body of an error may have any length
            hf_raise_for_status(type(answer)(status, headers=_told(answer), request=answer.request))
        if status not in ((_OK, _PARTIAL) if begin else (_OK,)):
            raise HubUnavailable(f"the hub answered with status {status}")
        yield answer


def begin_of(answer: Any) -> int:
    """Where in the file the bytes of an answer begin; -1: nowhere. Raises HubUnavailable if not said."""
    if answer.status_code == _NO_SUCH_RANGE:
        return -1
    if answer.status_code == _OK:
        return 0
    unit, _, span = answer.headers.get("Content-Range", "").partition(" ")
    first = span.partition("-")[0]
    if unit != "bytes" or not (first.isascii() and first.isdigit() and len(first) < 20):
        raise HubUnavailable("the hub answered with a part, but did not say which")
    return int(first)


def announced_bytes(answer: Any) -> int:
    """The length of an answer's body; 0 if it is not said, or is no number."""
    said = answer.headers.get("Content-Length", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else 0


def pieces_of(answer: Any) -> Iterator[bytes]:
    """The body as it comes. Raises HubUnavailable if it comes far too slowly."""
    since_s, num_bytes = monotonic(), 0
    for piece in answer.iter_bytes():
        yield piece
        num_bytes += len(piece)
        if monotonic() - since_s > SLOW_S:
            if num_bytes < SLOW_BYTES:
                raise HubUnavailable(f"the hub sends fewer than {SLOW_BYTES:,} bytes in {SLOW_S:g} s")
            since_s, num_bytes = monotonic(), 0


def _told(answer: Any) -> dict[str, str]:
    """What the hub says of an error in the head."""
    return {name: value for name, value in answer.headers.items() if name.lower().startswith("x-error-")}


@contextmanager
def translated(repo: str, folder: object) -> Iterator[None]:
    """Raise errors of the hub's code as ours. Their own texts hold URLs, which may be signed.

    folder: where files are kept.
    """
    from huggingface_hub import constants, errors

    try:
        yield
    except HerdError:
        raise
    except errors.GatedRepoError:
        raise ModelFileError(
            f"{repo}: is given to those only who have accepted its terms. Fix: accept them at "
            f"{constants.ENDPOINT}/{repo}, and set HF_TOKEN to a token of the same account"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ModelFileError(
            f"{repo}: there is no such repository, or it is private. Fix: check the name, or set HF_TOKEN to "
            "a token that may read it"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelFileError(
                f"{repo}: the hub refuses the token (status {status}). Fix: set HF_TOKEN anew"
            ) from None
        raise HubUnavailable(f"the hub answered with status {status} when asked for {repo}") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it does not answer"
        raise HubUnavailable(f"{constants.ENDPOINT} is not asked: {reason}") from None
    except errors.HTTPError as error:  # of the transport: no name, no connection, a proxy that refuses
        raise HubUnavailable(f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})") from None
    except OSError as error:
        raise ModelFileError(f"{repo}: cannot be kept in {folder}: {error.strerror}") from None
    except Exception as error:  # the hub's code meets odd answers in more ways than it names
        raise HubUnavailable(
            f"{constants.ENDPOINT} answers as no hub does ({type(error).__name__})"
        ) from None
