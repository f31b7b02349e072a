"""docs/settings.md against the code: every setting with its default, every option of the parts by its name."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml

from decodeloop import config
from decodeloop.cli.serve import ServeConfig
from decodeloop.policy import policies
from decodeloop.speculation.drafters import drafters
from decodeloop.speculation.drafters.draft_model import ModelOptions
from decodeloop.speculation.drafters.ngram import NgramOptions
from decodeloop.speculation.drafters.suffix import SuffixOptions

TEXT = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
EXAMPLE = re.search(r"```yaml\n(.*?)```", TEXT, re.S)[1]
NAMED = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", TEXT))))


def keys(value, at=""):
    return {f"{at}{key}" for key in value} | {
        path for key, inner in value.items() if isinstance(inner, dict) for path in keys(inner, f"{at}{key}.")
    }


def test_the_example_is_every_setting_with_its_default():
    assert config.load(EXAMPLE, ServeConfig, env={}) == ServeConfig()
    assert keys(yaml.safe_load(EXAMPLE)) == keys(asdict(ServeConfig()))


@pytest.mark.parametrize("registry", [policies, drafters], ids=["policies", "drafters"])
def test_every_choice_is_there(registry):
    assert set(registry.names()) - NAMED == set()


@pytest.mark.parametrize("options", [NgramOptions, SuffixOptions, ModelOptions])
def test_every_drafter_option_is_there(options):
    assert {field.name for field in fields(options)} - NAMED == set()
