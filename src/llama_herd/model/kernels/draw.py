"""The draw of tokens by a native library: which can have the largest logit plus noise, a handful a row.

Shapes: B rows, V vocabulary, N candidates.
"""

import ctypes

import torch
from torch import Tensor

from llama_herd.model.kernels.library import NUMBER, POINTER, LibraryPart, members

#: Candidates of a row that are kept. Mostly there are fewer than five.
ROOM = 32


class _Draw(ctypes.Structure):
    """herd::Draw."""

    _fields_ = members(
        (POINTER, "logits temperature least largest prefix"),
        (NUMBER, "rows tokens"),
        (POINTER, "found"),
        (NUMBER, "room"),
        (POINTER, "num_found"),
    )


class _Largest(ctypes.Structure):
    """herd::Largest."""

    _fields_ = members((POINTER, "logits"), (NUMBER, "rows tokens"), (POINTER, "values ids"))


class Draw(LibraryPart):
    """A library that finds the tokens which Gumbel-max may draw."""

    def candidates(
        self, logits: Tensor, temperature: Tensor, prefixes: Tensor, largest: Tensor, least: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The ids (B, N) of logits (B, V) that can win, in order, and which of them count (B, N).

        The others are (B,): what divides the logits, the state of each row's hash (int32), its largest logit,
        and how far below that a divided one may be. None: there are too many, or a row has no number at all.
        """
        columns = [one.float().contiguous() for one in (logits, temperature, least, largest)]
        states = prefixes.to(torch.int32).contiguous()
        found = torch.zeros(len(logits), ROOM, dtype=torch.int64)
        num_found = torch.zeros(len(logits), dtype=torch.int64)
        call = _Draw(
            *(one.data_ptr() for one in columns),
            states.data_ptr(),
            *logits.shape,
            found.data_ptr(),
            ROOM,
            num_found.data_ptr(),
        )
        self.library.herd_draw(ctypes.byref(call), self.threads)
        most = int(num_found.max())
        if most > ROOM or not int(num_found.min()):
            return None
        return found[:, :most], torch.arange(most) < num_found[:, None]

    def largest(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of logits (B, V) in float32, and the first ids that have them: (B,) each.

        As in torch, NaN counts as the largest.
        """
        logits = logits.contiguous()
        values = logits.new_empty((len(logits),))
        ids = logits.new_empty((len(logits),), dtype=torch.int64)
        call = _Largest(logits.data_ptr(), *logits.shape, values.data_ptr(), ids.data_ptr())
        self.library.herd_largest(ctypes.byref(call), self.threads)
        return values, ids


def load_draw(library: ctypes.CDLL) -> Draw:
    library.herd_draw.restype = None
    library.herd_draw.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.herd_largest.restype = None
    library.herd_largest.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return Draw(library)
