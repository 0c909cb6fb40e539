"""Which blocks of the KV cache each sequence holds, and what of its text it finds in the prefix cache.

Whole blocks of a text, prompt and completion, are known to the prefix cache as soon as they are computed, to sequences
of the same tenant only. What a sequence finds there has the bits that it would compute itself: `is_uniform` says that
the device was seen to give a position the same KV however its text was cut (`workers.uniform_rows`). Where that does
not hold, only whole chunks of prompts are shared, which are always cut alike, and a completion's blocks serve nobody
but the text's own sequence, after a preemption. Compiled, a model rounds otherwise: once it is, what was computed
before serves only the texts that go on eagerly.
"""

from __future__ import annotations

from workers.block_pool import BlockKey, BlockPool, Parent
from workers.fair_queue import flow_of
from workers.kv_cache import BLOCK_SIZE, blocks_for
from workers.scheduler import PREFILL_CHUNK
from workers.sequence import Sequence

ANYWHERE = -1
"""Kind of a block whose bits do not depend on how its text was cut."""


class BlockTables:
    """The block tables of an engine's sequences, over `num_blocks` blocks. is_compiled: whether their model is."""

    def __init__(self, num_blocks: int, prefix_cache: bool = True, is_uniform: bool = True) -> None:
        self._pool = BlockPool(num_blocks)
        self._prefix_cache = prefix_cache
        self._is_uniform = is_uniform
        self.is_compiled = False

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def available(self) -> int:
        """Blocks that can be had now."""
        return self._pool.available

    @property
    def used(self) -> int:
        """Blocks that somebody holds; what the prefix cache keeps beside them is room that can be had."""
        return self._pool.used

    @property
    def cached(self) -> int:
        """Blocks whose text the prefix cache knows."""
        return self._pool.cached

    def borrow(self, count: int) -> list[int] | None:
        """So many blocks for no sequence's text, to be given back; None where there are not as many."""
        return self._pool.allocate(count) if count <= self.available else None

    def give_back(self, blocks: list[int]) -> None:
        self._pool.release(blocks)

    def missing(self, sequence: Sequence) -> int:
        """Blocks that must be available for `admit`."""
        found = self._found(sequence)
        # A block that is found and idle can be had now, and no more once it is shared.
        return blocks_for(len(sequence.token_ids)) - sum(not self._pool.is_idle(block) for block in found)

    def admit(self, sequence: Sequence) -> None:
        """Give it blocks for all of its tokens, and what the prefix cache has of them, which is then computed."""
        for block in self._found(sequence):
            self._pool.share(block)
            sequence.blocks.append(block)
        sequence.known_blocks = len(sequence.blocks)
        sequence.kv_length = sequence.known_blocks * BLOCK_SIZE
        sequence.blocks += self._pool.allocate(blocks_for(len(sequence.token_ids)) - sequence.known_blocks)

    def skip(self, sequence: Sequence) -> None:
        """Take over what another one computed of the same text since: blocks of its own are let go for it."""
        if sequence.kv_length != sequence.known_blocks * BLOCK_SIZE:
            return
        first = sequence.known_blocks
        for i, block in enumerate(self._found(sequence), first):
            self._pool.share(block)
            self._pool.release([sequence.blocks[i]])
            sequence.blocks[i] = block
            sequence.known_blocks = i + 1
            sequence.kv_length = sequence.known_blocks * BLOCK_SIZE

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Have it hold blocks for so many tokens; False, and nothing, where there are not enough."""
        more = blocks_for(tokens) - len(sequence.blocks)
        if more > self.available:
            return False
        if more > 0:
            sequence.blocks += self._pool.allocate(more)
        return True

    @staticmethod
    def room(sequence: Sequence) -> int:
        """Draft tokens whose KV its blocks have room for."""
        return len(sequence.blocks) * BLOCK_SIZE - len(sequence.token_ids)

    def publish(self, sequence: Sequence) -> None:
        """Let the prefix cache know the blocks that are whole by now. One that it knows already takes their place."""
        while self._prefix_cache and (sequence.known_blocks + 1) * BLOCK_SIZE <= sequence.kv_length:
            i = sequence.known_blocks
            sequence.blocks[i] = self._pool.publish(sequence.blocks[i], self._key(sequence, i, self._parent(sequence)))
            sequence.known_blocks = i + 1

    def release(self, sequence: Sequence) -> None:
        """It holds nothing any more; what is known of it stays in the prefix cache while there is room."""
        self._pool.release(sequence.blocks)
        sequence.blocks, sequence.known_blocks, sequence.kv_length = [], 0, 0

    def _found(self, sequence: Sequence) -> list[int]:
        """The blocks behind those that it knows, as far as the prefix cache has them and it may skip them."""
        blocks: list[int] = []
        parent = self._parent(sequence)
        for i in range(sequence.known_blocks, self._most_known(sequence) if self._prefix_cache else 0):
            block = self._pool.find(self._key(sequence, i, parent))
            if block is None:
                break
            blocks.append(block)
            parent = self._pool.identity(block)
        if self._is_uniform:
            return blocks
        # Within a prompt only whole chunks: what is left of it must be cut as it always is.
        end = (sequence.known_blocks + len(blocks)) * BLOCK_SIZE
        if end < sequence.prompt_length:
            end -= end % PREFILL_CHUNK
        return blocks[: max(end // BLOCK_SIZE - sequence.known_blocks, 0)]

    @staticmethod
    def _most_known(sequence: Sequence) -> int:
        """Blocks that need not be computed: the last token has to be, and what a request wants to know of its prompt.

        Of a prompt whose log-probabilities were asked for, so many positions have decided the token after them.
        """
        scored = len(sequence.prompt_logprobs)
        is_open = sequence.request.sampling.prompt_logprobs is not None and scored < sequence.prompt_length - 1
        return (scored if is_open else len(sequence.token_ids) - 1) // BLOCK_SIZE

    def _parent(self, sequence: Sequence) -> Parent:
        known = sequence.known_blocks
        return self._pool.identity(sequence.blocks[known - 1]) if known else self._scope(sequence)

    def _scope(self, sequence: Sequence) -> str:
        flow = flow_of(sequence.request)
        return f"compiled, {flow}" if self.is_compiled and not sequence.is_eager else flow

    def _key(self, sequence: Sequence, i: int, parent: Parent) -> BlockKey:
        start = i * BLOCK_SIZE
        kind = ANYWHERE if self._is_uniform else _cut(start, sequence.prompt_length)
        return BlockKey(parent, tuple(sequence.token_ids[start : start + BLOCK_SIZE]), kind)


def _cut(start: int, prompt_length: int) -> int:
    """How the block at `start` was cut: its positions that are of the prompt, and the rows of the chunk they are in."""
    of_prompt = min(max(prompt_length - start, 0), BLOCK_SIZE)
    if not of_prompt:
        return 0
    first = start - start % PREFILL_CHUNK
    return of_prompt + (BLOCK_SIZE + 1) * min(prompt_length - first, PREFILL_CHUNK)
