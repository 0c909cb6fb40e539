"""Who is taken into the KV cache, and who has to leave it: tables and queues alone, no model."""

from __future__ import annotations

import pytest

from workers.block_tables import BlockTables
from workers.residency import Residency
from workers.scheduler import Scheduler
from workers.sequence import EngineRequest, SamplingParams, Sequence


class House:
    """Sequences that wait or run over so many blocks."""

    def __init__(self, num_blocks: int, max_sequences: int = 8, **tables) -> None:
        self.found: list[tuple[str, int]] = []
        self.scheduler = Scheduler()
        self.tables = BlockTables(num_blocks, **tables)
        self.residency = Residency(
            self.scheduler, self.tables, max_sequences, lambda s, at: self.found.append((s.request.request_id, at))
        )
        self.arrivals = 0

    def wait(self, name: str, prompt: list[int], tenant: str | None = "a", tier: str | None = None, **sampling):
        self.arrivals += 1
        request = EngineRequest(
            name, tuple(prompt), SamplingParams(400, **sampling), "cohort", tenant=tenant, service_tier=tier
        )
        sequence = Sequence(request, list(prompt), 0, detokenizer=None, arrival=self.arrivals)
        self.scheduler.waiting.append(sequence)
        return sequence

    def run(self, name: str, prompt: list[int], tenant: str | None = "a", tier: str | None = None) -> Sequence:
        """One that decodes: its prompt is computed, and a token of it emitted."""
        sequence = self.wait(name, prompt, tenant, tier)
        assert self.admit() == [name]
        sequence.kv_length = len(prompt)
        self.tables.publish(sequence)
        self.say(sequence, [1])
        return sequence

    def say(self, sequence: Sequence, token_ids: list[int]) -> None:
        sequence.token_ids += token_ids
        sequence.kv_length = len(sequence.token_ids) - 1

    def fill(self) -> None:
        """Nothing is left to be had."""
        assert self.tables.borrow(self.tables.available) is not None

    def admit(self) -> list[str]:
        return [s.request.request_id for s in self.residency.admit()]

    def make_room(self) -> list[str]:
        return [s.request.request_id for s in self.residency.make_room()]


def text(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def test_a_request_comes_in_when_there_are_blocks_for_its_prompt() -> None:
    house = House(4)
    house.wait("a", text(40))
    house.wait("b", text(40, 100))
    assert house.admit() == ["a"]
    assert house.residency.is_short


def test_a_block_for_each_one_that_runs_is_left_free() -> None:
    house = House(7)
    house.wait("a", text(40))
    house.wait("b", text(40, 100))
    assert house.admit() == ["a"]
    house = House(8)
    house.wait("a", text(40))
    house.wait("b", text(40, 100))
    assert house.admit() == ["a", "b"]


def test_one_that_would_fill_the_cache_comes_in_alone() -> None:
    house = House(3)
    house.wait("a", text(48))
    assert house.admit() == ["a"]


def test_one_that_does_not_fit_yet_is_not_overtaken() -> None:
    house = House(6)
    house.run("a", text(40))
    house.wait("long", text(80, 100))
    house.wait("short", text(4, 200))
    assert house.admit() == []


def test_no_more_run_than_may() -> None:
    house = House(40, max_sequences=2)
    for i in range(3):
        house.wait(f"{i}", text(8, 100 * i))
    assert house.admit() == ["0", "1"]
    assert not house.residency.is_short


def test_what_is_shared_takes_no_room() -> None:
    house = House(8)
    house.run("a", text(64))
    house.wait("b", [*text(64), 5])
    assert house.admit() == ["b"]
    assert (house.found, house.tables.used) == ([("b", 0)], 4 + 1)


def test_a_block_that_was_only_remembered_counts_as_room_once() -> None:
    """It can be had, but not by whoever shares it."""
    house = House(4)
    first = house.run("a", text(64))
    house.residency.leave(first)
    assert house.tables.available == 4
    sequence = house.wait("b", [*text(64), 5])
    assert house.tables.missing(sequence) == 5
    assert house.admit() == []


def test_nobody_is_preempted_while_there_are_blocks() -> None:
    house = House(3)
    sequence = house.run("a", text(16))
    assert (house.make_room(), len(sequence.blocks)) == ([], 2)


def test_the_youngest_of_the_tenant_that_holds_most_leaves() -> None:
    house = House(20)
    oldest = house.run("a1", text(15), "a")
    for i, (name, length) in enumerate((("b1", 30), ("b2", 30), ("a2", 30), ("c", 4)), 1):
        house.run(name, text(length, 100 * i), name[0])
    house.fill()
    house.say(oldest, text(16))
    assert house.make_room() == ["b2"]


def test_the_oldest_never_leaves() -> None:
    house = House(9)
    oldest = house.run("a", text(63), "a")
    house.run("b", text(4, 100), "b")
    house.fill()
    house.say(oldest, text(16))
    assert house.make_room() == ["b"]
    assert len(oldest.blocks) * 16 >= len(oldest.token_ids)


def test_flex_leaves_before_others() -> None:
    house = House(6)
    oldest = house.run("a", text(15), "a")
    house.run("b", text(4, 100), "b", tier="flex")
    house.run("c", text(15, 200), "c")
    house.fill()
    house.say(oldest, text(16))
    assert house.make_room() == ["b"]


def test_one_that_left_holds_nothing_and_is_its_tenants_next() -> None:
    house = House(4)
    oldest = house.run("a", text(15))
    victim = house.run("b", text(4, 100))
    house.wait("c", text(4, 200))
    house.fill()
    house.say(oldest, text(16))
    assert house.make_room() == ["b"]
    assert (victim.blocks, victim.kv_length, victim.preemptions) == ([], 0, 1)
    assert [s.request.request_id for s in house.scheduler.waiting] == ["b", "c"]
    assert house.residency.counts.preemptions == {"cohort": 1}


def test_of_several_that_left_the_oldest_comes_back_first() -> None:
    house = House(8)
    oldest = house.run("a", text(15))
    for i, name in enumerate(("b", "c"), 1):
        house.run(name, text(2, 100 * i))
    house.fill()
    house.say(oldest, text(30))
    assert house.make_room() == ["c", "b"]
    assert [s.request.request_id for s in house.scheduler.waiting] == ["b", "c"]


def test_nobody_leaves_for_a_draft() -> None:
    house = House(4)
    sequences = [house.run("a", text(15)), house.run("b", text(15, 100))]
    assert house.tables.borrow(1)
    house.residency.make_draft_room(sequences, [4, 4])
    assert [house.tables.room(s) for s in sequences] == [16, 0]


def test_drafts_take_no_room_beyond_what_may_be_emitted() -> None:
    house = House(4)
    sequence = house.run("a", text(15))
    house.say(sequence, [1] * 384)
    house.tables.grow(sequence, len(sequence.token_ids))
    before = len(sequence.blocks)
    house.residency.make_draft_room([sequence], [8])
    assert len(sequence.blocks) == before


def test_another_tenants_text_is_not_found() -> None:
    house = House(20)
    house.run("a", text(64), "a")
    house.wait("b", [*text(64), 5], "b")
    house.admit()
    assert house.found == []


def test_requests_without_a_tenant_share_within_their_cohort() -> None:
    house = House(20)
    house.run("a", text(64), None)
    house.wait("b", [*text(64), 5], None)
    house.admit()
    assert house.found == [("b", 0)]


def test_the_last_token_is_always_left_to_compute() -> None:
    house = House(20)
    house.run("a", text(64))
    again = house.wait("b", text(64))
    house.admit()
    assert again.kv_length == 48


def test_a_request_that_asks_for_its_prompts_log_probabilities_computes_it() -> None:
    house = House(20)
    house.run("a", text(64))
    asks = house.wait("b", [*text(64), 5], prompt_logprobs=0)
    house.admit()
    assert (asks.kv_length, house.found) == (0, [])


def test_who_computes_the_same_prompt_at_the_same_time_follows_the_first() -> None:
    house = House(20)
    first, second = house.wait("a", [*text(64), 1]), house.wait("b", [*text(64), 2])
    house.admit()
    first.kv_length = 65
    house.tables.publish(first)
    house.residency.skip()
    assert (second.kv_length, second.blocks[:4]) == (64, first.blocks[:4])
    assert house.tables.used == 4 + 1 + 1


def test_one_amid_a_block_takes_nothing_over() -> None:
    house = House(20)
    first, second = house.wait("a", [*text(64), 1]), house.wait("b", [*text(64), 2])
    house.admit()
    second.kv_length = 7
    first.kv_length = 65
    house.tables.publish(first)
    house.residency.skip()
    assert second.kv_length == 7


def test_without_the_prefix_cache_nothing_is_found_or_kept() -> None:
    house = House(20, prefix_cache=False)
    house.residency.leave(house.run("a", text(64)))
    house.wait("b", [*text(64), 5])
    house.admit()
    assert (house.found, house.tables.cached) == ([], 0)


class TestWhereKVDependsOnTheCut:
    """Only what is always cut alike is shared: whole chunks of a prompt."""

    def test_whole_chunks_are_shared(self) -> None:
        house = House(40, is_uniform=False)
        house.run("a", text(200))
        second = house.wait("b", [*text(200), 5])
        house.admit()
        assert second.kv_length == 128

    def test_less_than_a_chunk_is_not(self) -> None:
        house = House(40, is_uniform=False)
        house.run("a", text(100))
        second = house.wait("b", [*text(100), 5])
        house.admit()
        assert second.kv_length == 0

    def test_a_block_of_a_shorter_chunk_does_not_take_the_place_of_one_of_a_whole_chunk(self) -> None:
        house = House(40, is_uniform=False)
        first, second = house.run("a", text(100)), house.run("b", text(140))
        third = house.wait("c", [*text(140), 5])
        house.admit()
        assert not set(first.blocks) & set(second.blocks)
        assert third.blocks[:8] == second.blocks[:8]

    def test_an_answer_is_not_found_as_a_prompt(self) -> None:
        house = House(40, is_uniform=False)
        first = house.run("a", text(120))
        assert house.tables.grow(first, 200)
        house.say(first, text(60, 300))
        house.residency.leave(first)
        second = house.wait("b", [*first.token_ids, 5])
        house.admit()
        assert second.kv_length == 0

    def test_a_preempted_sequence_finds_its_own_answer(self) -> None:
        house = House(40, is_uniform=False)
        house.run("oldest", text(4, 900), "other")
        first = house.run("a", text(120))
        assert house.tables.grow(first, 200)
        house.say(first, text(60, 300))
        assert house.residency._preempt() is first
        house.admit()
        assert first.kv_length == 176


def test_an_answer_is_found_as_the_head_of_the_next_prompt() -> None:
    house = House(40)
    first = house.run("a", text(20))
    assert house.tables.grow(first, 60)
    house.say(first, text(30, 300))
    house.residency.leave(first)
    second = house.wait("b", [*first.token_ids, 5])
    house.admit()
    assert second.kv_length == 48


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48])
def test_whoever_leaves_gives_all_back(length) -> None:
    house = House(8)
    house.residency.leave(house.run("a", text(length)))
    assert (house.tables.used, house.tables.available) == (0, 8)
