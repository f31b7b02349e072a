"""Certificates: what is signed can't be changed, expires, and is about one regime."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.cli.signing import SigningKey, verify
from decodeloop.governance.certificate import (
    InvalidCertificate,
    Regime,
    canonical_json,
    differences,
    digest,
    faults,
    issue,
    read,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
REGIME = Regime(engine="decodeloop", version="1", model="m", model_hash="ab", threads=2, flags={"draft_len": 4})
CHECKS = ({"name": "identity", "passed": True, "measured": {"differ": 0}},)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return SigningKey.open(tmp_path_factory.mktemp("keys") / "deep" / "signing.key")


@pytest.fixture
def text(key):
    made = issue(REGIME, declared=("flags",), level="white", checks=CHECKS, now=NOW, signer=key, days=2)
    return json.dumps(made.to_json())


def found(text, now=NOW, **options):
    certificate, data = read(text)
    return faults(certificate, data, now=now, verify=verify, **options)


def test_a_certificate_is_believed_until_it_expires(text):
    assert found(text) == ()
    assert found(text, NOW + timedelta(days=2, seconds=-1)) == ()
    assert "expired" in found(text, NOW + timedelta(days=2))[0]


def paths(value, at=()):
    if isinstance(value, dict):
        return [path for key, inner in value.items() for path in paths(inner, (*at, key))]
    if isinstance(value, list):
        return [path for i, inner in enumerate(value) for path in paths(inner, (*at, i))]
    return [at]


def test_no_value_can_be_changed_unseen(text):
    whole = json.loads(text)
    for path in paths(whole):
        data = json.loads(text)
        place = data
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = {str: "00" * 32, int: 7, bool: False}[type(place[path[-1]])]
        with suppress(InvalidCertificate):
            assert found(json.dumps(data)), path


def test_nothing_can_be_added_or_taken_away(text):
    data = json.loads(text)
    assert found(json.dumps({**data, "note": "trust me"}))
    for key in data:
        shorter = {name: value for name, value in data.items() if name != key}
        with suppress(InvalidCertificate):
            assert found(json.dumps(shorter)), key


def test_who_signed_matters_where_issuers_are_named(text, key, tmp_path):
    other = SigningKey.open(tmp_path / "other.key")
    assert found(text, issuers={key.key_id}) == ()
    assert key.key_id in found(text, issuers={other.key_id})[0]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"schema": "decodeloop.certificate/2"}', "\x00"])
def test_what_is_no_certificate_is_refused(text):
    with pytest.raises(InvalidCertificate):
        read(text)


def test_a_regime_is_named_by_all_of_it():
    for name, value in (("model", "n"), ("threads", 3), ("flags", {"draft_len": 5}), ("weight_format", "int4")):
        other = replace(REGIME, **{name: value})
        assert other.hash != REGIME.hash
        assert [line.split(":")[0] for line in differences(REGIME, other)] == [name]
        assert differences(REGIME, other, ignore={name}) == ()
    with pytest.raises(InvalidCertificate, match="colour"):
        Regime.from_json({"engine": "e", "version": "1", "model": "m", "colour": "red"})


def test_a_certificate_lasts_a_day_at_least(key):
    with pytest.raises(ValueError, match="a day"):
        issue(REGIME, declared=(), level="white", checks=(), now=NOW, signer=key, days=0)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=5), values, max_size=3))
def test_canonical_json_is_one_text_a_value(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text
    assert canonical_json(dict(reversed(value.items()))) == text
    assert text.isascii()


def test_canonical_json_has_no_nan():
    with pytest.raises(ValueError, match="JSON"):
        digest({"x": float("nan")})


def test_a_key_is_its_owners_alone(tmp_path):
    path = tmp_path / "keys" / "signing.key"
    key = SigningKey.open(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert SigningKey.open(path).public_key == key.public_key
    assert verify(key.public_key, b"m", key.sign(b"m"))
    assert not verify(key.public_key, b"n", key.sign(b"m"))
    assert not verify(b"short", b"m", b"short")
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        SigningKey.open(path)
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="Ed25519"):
        SigningKey.open(path)
