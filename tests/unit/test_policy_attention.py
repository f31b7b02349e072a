"""How often drafters are asked for a sequence, given what came of asking."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.policy.attention import LATE, LOOKING, PATIENT, RESTS, SCOUTS, Attention, _Class, _Look
from decodeloop.policy.bounded import MAX_CLASSES
from decodeloop.types import RequestClass, Speculation, SpeculationMode

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT


@dataclass
class Asked:
    request_class: RequestClass = CHAT
    speculation: Speculation = Speculation()


@dataclass
class Running:
    """As much of a sequence as attention looks at."""

    id: int
    request: Asked = field(default_factory=Asked)
    organization: str = "t"


def served(attention, sequence, steps, worth):
    """The steps, counted from 0, in which it was asked. worth(step): whether anything was verified then."""
    asked = []
    for step in range(steps):
        if attention.due([sequence]):
            asked.append(step)
            attention.learn(sequence, heeded=worth(step), gain_ms=None)
    attention.finish(sequence)
    return asked


def hopeless(attention):
    for i in range(40):
        served(attention, Running(i), 60, lambda step: False)
    return attention


def test_what_is_always_worth_it_is_asked_at_every_step():
    assert served(Attention(), Running(0), 50, lambda step: True) == list(range(50))


def test_rests_grow_to_the_longest_and_end_with_the_first_draft_worth_verifying():
    attention = Attention()
    served(attention, Running(0), 200, lambda step: True)
    asked = served(attention, Running(1), 400, lambda step: step >= 200)
    gaps = [b - a for a, b in pairwise(asked)]
    assert gaps[: PATIENT - 2] == [1] * (PATIENT - 2)
    assert max(gaps) >= RESTS[0]
    woken = next(step for step in asked if step >= 200)
    assert woken < 200 + RESTS[-1]
    assert [step for step in asked if step >= woken] == list(range(woken, 400))


def test_a_hopeless_class_costs_next_to_nothing():
    attention = hopeless(Attention())
    asked = [len(served(attention, Running(100 + i), 96, lambda step: False)) for i in range(8 * SCOUTS)]
    assert sum(asked) <= 8 * 96 / RESTS[-1] + 8
    assert sum(bool(count) for count in asked) <= 8 + 1


def test_a_long_sequence_of_a_hopeless_class_is_looked_at_in_the_end():
    attention = hopeless(Attention())
    for i in range(SCOUTS):
        asked = served(attention, Running(100 + i), LATE + 200, lambda step: step >= LATE)
        assert asked
        assert asked[0] <= LATE
        assert asked[-100:] == list(range(LATE + 100, LATE + 200))
        attention = hopeless(attention)


def test_who_wants_no_speculation_is_no_scout():
    attention, off = hopeless(Attention()), Speculation(SpeculationMode.OFF)
    scouts = 0
    for i in range(2 * SCOUTS):
        assert not served(attention, Running(100 + 2 * i, Asked(speculation=off)), 60, lambda step: False)
        scouts += bool(served(attention, Running(101 + 2 * i), 60, lambda step: False))
    assert scouts == 2


def test_a_class_that_becomes_worth_it_is_asked_at_once_again():
    attention = hopeless(Attention())
    for i in range(2 * SCOUTS):
        served(attention, Running(100 + i), 100, lambda step: True)
    assert served(attention, Running(999), 50, lambda step: True) == list(range(50))


def test_what_has_paid_and_stops_is_given_a_second_look_of_as_many_askings_as_paid():
    """Labels end with the asking, and whether a class has changed is told by its labels."""
    attention = Attention()
    paid = len(served(attention, Running(0), 1500, lambda step: True))
    asked = [len(served(attention, Running(1 + i), 100, lambda step: False)) for i in range(100)]
    looks = [count for count in asked if count >= 100 / LOOKING - 1]
    assert 0.9 * paid <= sum(looks) <= 1.3 * paid
    assert sum(asked[-40:]) <= 40 * 100 / RESTS[-1]


def test_a_class_that_is_yet_unknown_earns_no_second_look_by_being_asked():
    """Looked at twice before it has ever paid, a class that pays now and then was held to pay nothing at all."""
    look = _Look()
    unknown = _Class(look)
    for _ in range(20):
        unknown.add(0.0)
        assert not look.due
    for _ in range(20):
        unknown.add(3.0)
    assert look.askings > 0


def test_classes_and_tenants_rest_apart():
    attention = hopeless(Attention())
    other, tenant = Running(500, Asked(EDIT)), Running(501, organization="u")
    assert attention.due([other, tenant]) == [0, 1]


def test_what_is_remembered_of_tenants_is_bounded_however_they_come_and_go():
    """More kinds and places together than are remembered, each again and again."""
    attention = Attention()
    for i in range(3 * MAX_CLASSES):
        pair = [Running(2 * i + j, organization=f"o{(i + j) % (3 * MAX_CLASSES // 5)}") for j in (0, 1)]
        attention.due(pair)
        for sequence in pair:
            attention.finish(sequence)
    places = [len(look.places) for octave in attention._octaves.values() for look in octave.looks.values()]
    assert len(places) <= MAX_CLASSES
    assert max(places) == 2


def in_vain(attention, sequences, steps):
    """Steps in which anybody was asked; nothing came of it."""
    disturbed = 0
    for _ in range(steps):
        due = attention.due(sequences)
        disturbed += bool(due)
        for i in due:
            attention.learn(sequences[i], heeded=False, gain_ms=0.0)
    return disturbed


def test_resting_sequences_are_asked_together():
    attention = Attention()
    in_vain(attention, [Running(i) for i in range(32)], 200)
    assert 0 < in_vain(attention, [Running(100 + i) for i in range(32)], 200) <= 200 / RESTS[-1] + 1


def test_what_pays_is_learned_apart_for_every_octave_of_load():
    attention, crowd = Attention(), [Running(i) for i in range(16)]
    in_vain(attention, crowd, 300)
    assert in_vain(attention, crowd, 160) <= 10
    asked = served(attention, crowd[3], 50, lambda step: True)  # the load has fallen
    assert asked == list(range(50))


def test_neighbouring_loads_share_an_octave():
    attention, crowd = Attention(), [Running(i) for i in range(8)]
    in_vain(attention, crowd, 200)
    assert sum(in_vain(attention, crowd[: 8 - step % 2], 1) for step in range(160)) <= 20


@pytest.mark.parametrize(("cost_ms", "rests"), [(0.1, False), (3.0, True)])
def test_asking_that_costs_more_than_it_saves_becomes_rare(cost_ms, rests):
    """Every fifth draft is worth 5 ms; they come in runs of eight."""
    attention, asked, steps = Attention(), 0, 3000
    for i in range(steps // 100):
        sequence = Running(i)
        for step in range(100):
            due = attention.due([sequence])
            worth = bool(due) and step % 40 < 8
            if due:
                attention.learn(sequence, heeded=worth, gain_ms=5.0 if worth else 0.0)
            if not worth:
                attention.took(len(due), 0.3 + cost_ms * len(due))
            asked += len(due)
        attention.finish(sequence)
    assert asked < 0.3 * steps if rests else asked > 0.4 * steps


def test_who_wants_none_is_never_asked():
    off = Running(0, Asked(speculation=Speculation(SpeculationMode.OFF)))
    assert served(Attention(), off, 100, lambda step: True) == []


@given(worth=st.lists(st.booleans(), min_size=64, max_size=300))
def test_it_is_asked_again_within_the_longest_rest_whatever_happens(worth):
    asked = served(Attention(), Running(0), len(worth), lambda step: worth[step])
    gaps = [b - a for a, b in zip([-1, *asked], [*asked, len(worth)], strict=True)]
    assert max(gaps) <= RESTS[-1] + 1


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_what_is_now_and_then_worth_it_is_missed_at_most_half(share):
    """Drafts worth verifying come in runs, as copies do."""
    period = 40
    attention, found = Attention(), 0
    for i in range(20):
        asked = served(attention, Running(i), 400, lambda step: step % period < share * period)
        found += sum(step % period < share * period for step in asked)
    assert found >= 0.5 * share * 20 * 400


def test_what_pays_among_its_own_is_not_expected_to_pay_among_others():
    attention, numbers = Attention(), iter(range(10**6))

    def asked(classes, worth, steps):
        sequences = [Running(next(numbers), Asked(c)) for c in classes]
        count = 0
        for _ in range(steps):
            due = attention.due(sequences)
            count += 0 in due
            for i in due:
                attention.learn(sequences[i], heeded=worth, gain_ms=5.0 if worth else 0.0)
        for sequence in sequences:
            attention.finish(sequence)
        return count

    alike, mixed = [EDIT] * 4, [EDIT, CHAT, CHAT, CHAT]
    for _ in range(20):
        asked(alike, True, 40)
        asked(mixed, False, 40)
    assert asked(alike, True, 40) == 40
    assert asked(mixed, False, 40) <= 4
