"""The files in examples/ are ones that the commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodeloop import config
from decodeloop.cli.serve import ServeConfig
from decodeloop.evaluation.pilot import read_pilot, suite_of
from decodeloop.evaluation.workloads.file import read_file
from decodeloop.gateway.app import build_app

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["pools.yaml"])
def test_it_is_a_configuration(name):
    settings = config.load((EXAMPLES / name).read_text(), ServeConfig, env={}, source=name)
    app = build_app(settings.gateway, {})
    assert set(app.fleet.pools) == {"speculative", "throughput"}
    assert app.fleet.pools["speculative"].refuses == {"min_p", "logit_bias"}


@pytest.mark.parametrize("name", ["pilot.yaml", "pilot-smaller-model.yaml"])
def test_it_is_a_pilot_that_tries_what_could_be_the_better_way(name):
    pilot = read_pilot((EXAMPLES / name).read_text(), env={}, source=name)
    roles = {arm.role: arm for arm in pilot.arms}
    assert pilot.arms[0].role == "off"
    assert pilot.arm(pilot.candidate).lossless
    smaller = roles["smaller model"]
    assert (smaller.lossless, smaller.if_present) == (False, True)
    assert smaller.model not in (None, pilot.model)
    if pilot.workload.file is not None:
        read = read_file(EXAMPLES / pilot.workload.file, pilot.workload.form)
        assert not read.faults
        needed = 2 * pilot.budget.blocks * pilot.load.requests_per_turn * len(pilot.load.levels)
        assert len(suite_of(pilot.workload, seed=0, read=read.workload).requests) >= needed
