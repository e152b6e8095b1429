"""Which tokens of prompts a forward computes: told to the device by a few numbers for each tile of them."""

from collections.abc import Iterator, Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from llama_herd.worker.engine.scheduler import Row

#: Most tokens of a tile: these attend at once.
TILE_TOKENS = 64
#: Prompt tokens of a captured forward. Fewer are filled up with tokens of the trash slot.
TOKENS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
#: A captured forward has a tile for so many of its tokens: many short prompts take a larger one.
TOKENS_A_TILE = 8


class Tile(NamedTuple):
    """Consecutive tokens of the sequence in a slot, the first of them at position `start`."""

    slot: int
    start: int
    num_tokens: int


@dataclass(frozen=True)
class Lot:
    """Prompt tokens of one forward, tile by tile, and how many the captured forward has that takes them."""

    tiles: tuple[Tile, ...]
    num_tokens: int
    bucket: int

    @classmethod
    def of(cls, tiles: Rows[Tile]) -> "Lot":
        num_tokens = sum(tile.num_tokens for tile in tiles)
        least = max(num_tokens, TOKENS_A_TILE * len(tiles))
        return cls(tuple(tiles), num_tokens, next(one for one in (0, *TOKENS) if one >= least))

    def words(self, trash: int) -> list[int]:
        """All that the device is told (4, N): first token in the lot, how many, position of the first, slot.

        What only fills the lot up is of the last tile, which has none.
        """
        num_empty = num_tiles(self.bucket) - len(self.tiles)
        slots, starts, counts = zip(*self.tiles, *[(trash, 0, 0)] * num_empty, strict=True)
        return [0, *accumulate(counts[:-1]), *counts, *starts, *slots]


def num_tiles(bucket: int) -> int:
    """The tiles of a captured forward of so many prompt tokens: the last one is always empty."""
    return bucket // TOKENS_A_TILE + 1


def lots_of(rows: Rows[Row]) -> list[Lot]:
    """The prompt tokens of a step, in lots that a forward takes; the last one is full, or the only one.

    The last token of a prompt that is complete is not among them: it is a row that decodes. Those of scored
    prompts come last, no more than a lot.
    """
    last_scored = sorted(rows, key=lambda row: row.num_scores > 0)
    lots, num_tokens = [list[Tile]()], 0
    for tile in reversed([tile for row in last_scored for tile in _tiles_of(row)]):
        num_tokens += tile.num_tokens
        if num_tokens > TOKENS[-1] or len(lots[-1]) == TOKENS[-1] // TOKENS_A_TILE:
            lots.append([])
            num_tokens = tile.num_tokens
        lots[-1].append(tile)
    return [Lot.of(lot[::-1]) for lot in reversed(lots)]


def _tiles_of(row: Row) -> Iterator[Tile]:
    stop = row.start + row.num_tokens - row.is_complete
    for start in range(row.start, stop, TILE_TOKENS):
        yield Tile(row.sequence.slot, start, min(TILE_TOKENS, stop - start))
