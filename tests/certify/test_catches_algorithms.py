"""What enumeration must catch, and what ships passes."""

import pytest

from decodeloop.evaluation.lossless import rules
from decodeloop.evaluation.lossless.algorithm import check_algorithm, default_policies
from decodeloop.evaluation.lossless.bugs import Pinned
from decodeloop.evaluation.lossless.shaped import FilteredAtTheEnd, Stale
from decodeloop.speculation.verifiers import verifiers


def enumerated(**options):
    names = ("rejection", "block")
    settings = {"seeds": 1, "cuts": (), **options}
    return check_algorithm({name: verifiers.load(name) for name in names}, settings.pop("policies", {}), **settings)


def test_what_ships_passes_and_every_violation_put_in_is_caught():
    shipped = {name: verifiers.load(name) for name in verifiers.names()}
    found = check_algorithm(shipped, default_policies(["fixed"]), seeds=1)
    assert found.passed
    assert found.controlled
    assert len(found.controls) > 30


@pytest.mark.parametrize("rule", rules.UNSOUND)
def test_an_unsound_way_to_cut_fails_by_enumeration(rule):
    found = enumerated(cuts=(rule,))
    assert not found.passed
    assert found.measured["total_variation"] >= rules.INSTANCES[rule].least


@pytest.mark.parametrize("rows", [FilteredAtTheEnd, Stale])
def test_rows_that_are_shaped_wrongly_fail_by_enumeration(rows):
    assert not enumerated(rows=rows).passed


def test_pinned_acceptance_fails_by_enumeration():
    found = check_algorithm({"synthetic": lambda: Pinned(0.7)}, {}, seeds=1)
    assert not found.passed
