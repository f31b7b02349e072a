"""docs/http.md against the code: what the gateway takes and gives is there, by its name."""

import re
from pathlib import Path

import pytest

from asgi import COMPLETIONS, completion, gateway
from asking import asked
from decodeloop.gateway.wire.accounts import decodeloop_object
from decodeloop.gateway.wire.body import IGNORED, NEUTRAL
from decodeloop.gateway.wire.fields import (
    ChatBody,
    CompletionBody,
    SpeculationBody,
    StreamOptions,
    StructuredOutputs,
)
from decodeloop.gateway.wire.sampling import PRIORITIES
from decodeloop.types import CLASS_ALIASES, RequestClass, SpeculationMode
from scripted import ScriptedUpstream, report, says

TEXT = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
NAMED = set(re.findall(r"[\w.]+", " ".join(re.findall(r"`([^`\n]+)`", TEXT))))


def fields(body):
    return set(body.__struct_encode_fields__)


@pytest.mark.parametrize(
    "names",
    [
        fields(ChatBody) | fields(CompletionBody),
        fields(StreamOptions) | fields(StructuredOutputs) | fields(SpeculationBody),
        IGNORED,
        set(NEUTRAL),
        {*RequestClass, *CLASS_ALIASES, *SpeculationMode, *PRIORITIES},
    ],
    ids=["bodies", "nested", "ignored", "neutral", "words"],
)
def test_every_field_is_documented(names):
    assert names - NAMED == set()


def test_every_key_of_the_decodeloop_object_is_documented():
    request = asked(COMPLETIONS, completion())
    assert set(decodeloop_object(report(request), [])) - NAMED == set()


def test_every_route_is_documented():
    routes = {route.path.replace(":path", "") for route in gateway(ScriptedUpstream(says("a")))._router.routes}
    documented = {
        path for line in re.findall(r"^\| (`.+?) \|", TEXT, re.M) for path in re.findall(r"/[\w/{}.-]*", line)
    }
    assert routes == documented
