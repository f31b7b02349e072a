"""The configurations in examples/ are ones that `serve --config` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from decodeloop import config
from decodeloop.cli.serve import ServeConfig
from decodeloop.gateway.app import build_app

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["pools.yaml"])
def test_it_is_a_configuration(name):
    settings = config.load((EXAMPLES / name).read_text(), ServeConfig, env={}, source=name)
    app = build_app(settings.gateway, {})
    assert set(app.fleet.pools) == {"speculative", "throughput"}
    assert app.fleet.pools["speculative"].refuses == {"min_p", "logit_bias"}
