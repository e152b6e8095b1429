"""The most memory that operators of torch hold at once, by what they return; no device need be there."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operators make inside it, as long as somebody holds them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, int] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._hold(tensor)
        return made

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._held:
            self._held[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self._held.pop, storage._cdata, None)
            self.peak_bytes = max(self.peak_bytes, sum(self._held.values()))
