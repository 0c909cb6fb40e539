"""Who holds which block of the KV cache, and which blocks hold a text that may be asked for again.

The prefix cache is a tree of whole blocks: a block is found by the block before it and its own tokens, which are
compared one by one, so that two texts are never taken for each other by their hashes. The first block of a text is
found by its scope. A block whose text is known stays when nobody holds it any more, until room is needed: the one that
was let go first is then given away, and of one sequence's its last one, so that what is kept can always be reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Parent = str | int
"""Where a block's text goes on from: the scope of a text's first block, else the `identity` of the block before."""


class BlockKey(NamedTuple):
    """What a whole block is found by. kind: sets apart blocks of one text whose bits may differ."""

    parent: Parent
    token_ids: tuple[int, ...]
    kind: int = 0


class _Known(NamedTuple):
    key: BlockKey
    identity: int


class BlockPool:
    """Blocks 1 to `num_blocks`: free, held by one or more sequences, or idle, which is known and held by nobody."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks, 0, -1))
        self._holders: dict[int, int] = {}
        self._known: dict[int, _Known] = {}
        self._by_key: dict[BlockKey, int] = {}
        self._idle: dict[int, None] = {}  # in the order in which they were let go
        self._identities = 0

    @property
    def available(self) -> int:
        """Blocks that can be had now, those of the prefix cache that nobody holds included."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return len(self._holders)

    @property
    def cached(self) -> int:
        """Blocks whose text is known."""
        return len(self._known)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def allocate(self, count: int) -> list[int]:
        """So many blocks, each held once; idle ones are forgotten for it. Raises IndexError where there are fewer."""
        if count > self.available:
            raise IndexError(f"{count} blocks were asked for and {self.available} can be had")
        blocks = []
        for _ in range(count):
            if not self._free:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                self._forget(oldest)
                self._free.append(oldest)
            block = self._free.pop()
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def share(self, block: int) -> None:
        """One more holds a block that is known."""
        self._idle.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holds these blocks of its text, given in order, no more. Raises ValueError for a block nobody holds."""
        for block in reversed(list(blocks)):
            if block not in self._holders:
                raise ValueError(f"block {block} is not in use")
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            del self._holders[block]
            if block in self._known:
                self._idle[block] = None
            else:
                self._free.append(block)

    def find(self, key: BlockKey) -> int | None:
        return self._by_key.get(key)

    def publish(self, block: int, key: BlockKey) -> int:
        """The block that stands for this text from now on: this one, or one that was known before.

        It is held in place of `block`, which is let go where it is another one.
        """
        known = self._by_key.get(key)
        if known is not None:
            if known != block:
                self.share(known)
                self.release([block])
            return known
        self._identities += 1
        self._known[block] = _Known(key, self._identities)
        self._by_key[key] = block
        return block

    def identity(self, block: int) -> int:
        """Of a known block's text: never given to another one."""
        return self._known[block].identity

    def _forget(self, block: int) -> None:
        del self._by_key[self._known.pop(block).key]
