"""Blocks are held, shared, kept while nobody needs their room, and found by what they say alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.block_pool import BlockKey, BlockPool


def known(pool: BlockPool, *texts: tuple[int, ...], scope: str = "tenant a") -> list[int]:
    """Blocks of one text, allocated and published in order."""
    blocks, parent = [], scope
    for token_ids in texts:
        (block,) = pool.allocate(1)
        blocks.append(pool.publish(block, BlockKey(parent, token_ids)))
        parent = pool.identity(blocks[-1])
    return blocks


def test_the_block_that_belongs_to_nobody_is_never_given_away() -> None:
    assert sorted(BlockPool(3).allocate(3)) == [1, 2, 3]


def test_more_than_there_are_cannot_be_had_and_nothing_is_taken() -> None:
    pool = BlockPool(3)
    with pytest.raises(IndexError, match="4 blocks were asked for and 3 can be had"):
        pool.allocate(4)
    assert pool.available == 3


def test_a_block_that_nobody_holds_cannot_be_released() -> None:
    with pytest.raises(ValueError, match="block 2 is not in use"):
        BlockPool(3).release([2])


def test_a_shared_block_is_in_use_until_the_last_one_lets_it_go() -> None:
    pool = BlockPool(2)
    (block,) = known(pool, (1, 2))
    pool.share(block)
    pool.release([block])
    assert (pool.used, pool.is_idle(block)) == (1, False)
    pool.release([block])
    assert (pool.used, pool.is_idle(block), pool.available) == (0, True, 2)


def test_a_block_is_found_as_long_as_its_room_is_not_needed() -> None:
    pool = BlockPool(2)
    (block,) = known(pool, (1, 2))
    pool.release([block])
    key = BlockKey("tenant a", (1, 2))
    assert pool.find(key) == block
    pool.allocate(2)
    assert pool.find(key) is None


def test_the_one_unused_for_longest_goes_first() -> None:
    pool = BlockPool(3)
    first, second = known(pool, (1,))[0], known(pool, (2,))[0]
    pool.release([first])
    pool.release([second])
    pool.share(first)
    pool.release([first])
    pool.allocate(2)
    assert pool.find(BlockKey("tenant a", (1,))) == first
    assert pool.find(BlockKey("tenant a", (2,))) is None


def test_of_a_text_the_end_goes_before_the_beginning() -> None:
    """Else what is left could not be found: the way to it leads over its beginning."""
    pool = BlockPool(3)
    blocks = known(pool, (1,), (2,), (3,))
    pool.release(blocks)
    pool.allocate(2)
    assert pool.find(BlockKey("tenant a", (1,))) == blocks[0]


def test_a_block_of_the_same_text_takes_the_place_of_a_second_one() -> None:
    pool = BlockPool(2)
    (first,) = known(pool, (1, 2))
    (second,) = pool.allocate(1)
    assert pool.publish(second, BlockKey("tenant a", (1, 2))) == first
    assert pool.available == 1
    pool.release([first])
    assert pool.used == 1


class Colliding(int):
    """A token whose hash is that of every other one."""

    def __hash__(self) -> int:
        return 0


def test_texts_of_one_hash_are_not_taken_for_each_other() -> None:
    pool = BlockPool(2)
    (block,) = known(pool, (Colliding(1), Colliding(2)))
    assert hash((Colliding(1), Colliding(2))) == hash((Colliding(2), Colliding(1)))
    assert pool.find(BlockKey("tenant a", (Colliding(2), Colliding(1)))) is None
    assert pool.find(BlockKey("tenant a", (Colliding(1), Colliding(2)))) == block


@pytest.mark.parametrize(
    "other", [BlockKey("tenant b", (1, 2)), BlockKey("tenant a", (1, 3)), BlockKey("tenant a", (1, 2), kind=3)]
)
def test_another_scope_text_or_kind_is_another_block(other) -> None:
    pool = BlockPool(2)
    known(pool, (1, 2))
    assert pool.find(other) is None


def test_what_stood_before_a_block_is_part_of_what_it_says() -> None:
    pool = BlockPool(4)
    known(pool, (1,), (9,))
    (other,) = known(pool, (2,))
    assert pool.find(BlockKey(pool.identity(other), (9,))) is None


def test_a_block_given_away_and_known_again_is_not_the_old_text() -> None:
    """What stood behind the old text must not be found behind the new one, though the block has the same number."""
    pool = BlockPool(1)
    (block,) = known(pool, (1,))
    old = pool.identity(block)
    pool.release([block])
    (again,) = known(pool, (2,))
    assert (again, pool.identity(again) == old) == (block, False)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)), max_size=60))
def test_every_block_is_free_idle_or_held_as_often_as_it_was_taken(moves) -> None:
    pool, held = BlockPool(5), []
    for move, which, token in moves:
        if move == 0 and pool.available:
            held += pool.allocate(1)
        elif move == 1 and held:
            pool.release([held.pop(which % len(held))])
        elif move == 2 and held:
            i = which % len(held)
            key = BlockKey("tenant", (token,))
            known_already = any(pool.find(BlockKey("tenant", (t,))) == held[i] for t in range(3))
            if not known_already:
                held[i] = pool.publish(held[i], key)
        elif move == 3 and (found := pool.find(BlockKey("tenant", (token,)))) is not None:
            pool.share(found)
            held.append(found)
        assert pool.used == len(set(held))
        assert pool.available == 5 - len(set(held))
