"""Sweeps over loads and classes: interrupted and resumed, and what they come to."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.evaluation.arms import Measurement
from decodeloop.evaluation.cliff import MIXED, Cell, Sweep, conclude, grid, summary, sweep

ARMS = ("off", "fixed 4", "adaptive")
CELLS = grid((1, 4, 16), ("code_edit", MIXED))


class Machine:
    """fixed 4 gains at load 1, loses from 4 on; adaptive gains at 1 and is plain beyond. Noise of half a per cent."""

    def __init__(self, adaptive_at_16=1.0):
        self.rng, self.served, self.adaptive_at_16 = np.random.default_rng(0), [], adaptive_at_16

    def serve(self, cell, arms, turn):
        self.served += [(cell, arm, turn) for arm in arms]
        return {arm: self.measure(cell, arm) for arm in arms}

    def measure(self, cell, arm):
        speed = {
            "off": 1.0,
            "fixed 4": 2.0 / cell.load,
            "adaptive": {1: 2.1, 4: 1.0, 16: self.adaptive_at_16}[cell.load],
        }
        seconds = float(np.exp(self.rng.normal(0.0, 0.005))) / speed[arm]
        return Measurement(tokens=100, seconds=seconds, requests=cell.load)


def test_a_mix_of_one_is_left_out():
    assert Cell(1, MIXED) not in CELLS
    assert Cell(1, "code_edit") in CELLS


def test_finds_the_cliff_of_each_arm():
    findings = conclude(sweep(Machine().serve, CELLS, ARMS, 8), ours="adaptive", fixed=("fixed 4",))
    assert findings.cliffs["fixed 4"] == {"code_edit": (1, 4), MIXED: (None, 4)}
    assert findings.cliffs["adaptive"]["code_edit"] == (1, None)
    assert findings.never_slower.holds
    assert findings.against_best[Cell(1, "code_edit")].ratio.ratio == pytest.approx(1.05, abs=0.01)
    assert findings.against["fixed 4"].low > 1.5
    said = json.loads(json.dumps(summary(findings)))
    assert (said["best"]["load"], said["best"]["class"]) == (1, "code_edit")
    assert said["best"]["low"] < said["best"]["ratio"] < said["best"]["high"]
    assert said["inconclusive"] == []


def test_one_slow_cell_breaks_the_claim():
    findings = conclude(sweep(Machine(adaptive_at_16=0.9).serve, CELLS, ARMS, 8), ours="adaptive")
    assert not findings.never_slower.holds
    assert summary(findings)["worst"]["load"] == 16


def test_weights_count():
    found = sweep(Machine(adaptive_at_16=0.9).serve, CELLS, ARMS, 4)
    heavy = conclude(found, ours="adaptive", weights={"code_edit": 9.0}).against["off"]
    assert heavy.ratio > conclude(found, ours="adaptive").against["off"].ratio


def test_goes_round_all_cells_stops_when_asked_and_goes_on():
    machine, stored = Machine(), []
    steps = iter(range(100))
    sweep(
        machine.serve,
        CELLS,
        ARMS,
        3,
        save=lambda found: stored.append(json.dumps(found.to_json())),
        out_of_time=lambda: next(steps) == len(CELLS) + 2,
    )
    blocks = [sum(c == cell and a == "off" for c, a, _ in machine.served) // 2 for cell in CELLS]
    assert blocks == [2, 2, 1, 1, 1]
    machine.served.clear()
    found = sweep(machine.serve, CELLS, ARMS, 3, found=Sweep.from_json(json.loads(stored[-1])))
    assert len(machine.served) == (3 * len(CELLS) - sum(blocks)) * len(ARMS) * 2
    assert all(len(turns) == 2 for run in found.runs.values() for arm in run.turns.values() for turns in arm.values())


def test_unequal_blocks_are_compared_where_all_have_them():
    found = sweep(Machine().serve, CELLS, ARMS, 2)
    del found.runs[CELLS[0]].turns["adaptive"][1]
    assert conclude(found, ours="adaptive").ratios["adaptive"][CELLS[0]].blocks == 1


def test_nothing_measured_is_an_error():
    with pytest.raises(ValueError, match="no block"):
        conclude(Sweep(), ours="adaptive")


@pytest.mark.parametrize("text", ["code", "4", "x code", ""])
def test_cells_are_read_strictly(text):
    with pytest.raises(ValueError, match="no cell"):
        Cell.parse(text)
