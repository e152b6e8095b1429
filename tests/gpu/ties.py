"""Ids that two devices may draw differently: only where the best two logits are as good as equal."""

from collections.abc import Callable, Sequence

from torch import Tensor

Ids = list[int]


def first_real_difference(
    ours: Sequence[Ids],
    exact: Sequence[Ids],
    prompts: Sequence[Ids],
    logits_after: Callable[[Ids], Tensor],
    tolerance: float,
) -> str:
    """Where greedy ids differ though the best two logits do by more than the tolerance; empty: nowhere.

    What follows a tie that fell the other way is another text, and is not compared. `logits_after` is of the
    exact device. Raises ValueError when ties leave less than a third of all ids to compare.
    """
    num_compared = 0
    for number, (mine, theirs, prompt) in enumerate(zip(ours, exact, prompts, strict=True)):
        pairs = zip(mine, theirs, strict=True)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(theirs))
        num_compared += at
        if at == len(theirs):
            continue
        best, second = logits_after([*prompt, *theirs[:at]]).topk(2).values.tolist()
        if best - second > tolerance:
            ahead = f"{theirs[at]}, which is {best - second:.2g} ahead"
            return f"prompt {number}, token {at}: {mine[at]} for {ahead}"
    if 3 * num_compared < sum(map(len, exact)):
        raise ValueError(f"only {num_compared} ids could be compared: these logits are all ties")
    return ""
