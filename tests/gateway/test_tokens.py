"""JSON web tokens: what a good one says, and others that say nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from joserfc import jwk, jwt

from decodeloop.gateway.jwt import JwtVerifier
from decodeloop.governance.settings import JwtSettings
from decodeloop.types import Identity
from governed import NOON_S

SIGNER = jwk.OKPKey.generate_key("Ed25519", parameters={"kid": "one"})
GOOD = {
    "iss": "https://idp", "aud": ["x", "decodeloop"], "exp": NOON_S + 60, "sub": "ana", "org": "acme",
    "act": {"sub": "coder"}, "scope": "openid decodeloop:review",
}  # fmt: skip


def verifier() -> JwtVerifier:
    keys = json.dumps({"keys": [SIGNER.as_dict(private=False)]})
    return JwtVerifier(JwtSettings(keys=keys, issuer="https://idp", audience="decodeloop"))


def token(key: Any = SIGNER, algorithm: str = "Ed25519", **changes: Any) -> str:
    claims = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": "one"}, claims, key, algorithms=[algorithm])


def test_a_token_says_who_asks_and_for_whom() -> None:
    there = verifier()
    for _ in range(2):  # the second time from memory
        assert there.identity(token(), NOON_S) == Identity("acme", "ana", "coder", "review", "jwt:ana")
    assert there.identity(token(act=None, scope=None), NOON_S) == Identity("acme", "ana", "", "", "jwt:ana")


@pytest.mark.parametrize(
    "bad",
    [
        lambda: token(iss="https://else"),
        lambda: token(aud="else"),
        lambda: token(exp=NOON_S - 60),
        lambda: token(exp=None),
        lambda: token(nbf=NOON_S + 60),
        lambda: token(sub=None),
        lambda: token(org=None),
        lambda: token(sub=["ana"]),
        lambda: token(key=jwk.OKPKey.generate_key("Ed25519", parameters={"kid": "one"})),
        lambda: token()[:-4] + "AAAA",
        lambda: "e30.e30.",
        lambda: "\udcff.é.x",
        lambda: "a" * 20_000 + ".b.c",
    ],
)
def test_other_tokens_say_nothing(bad: Any) -> None:
    assert verifier().identity(bad(), NOON_S) is None


def test_no_token_chooses_its_algorithm() -> None:
    secret = jwk.OctKey.import_key(json.dumps(SIGNER.as_dict(private=False)))
    forged = jwt.encode({"alg": "HS256", "kid": "one"}, GOOD, secret, algorithms=["HS256"])
    assert verifier().identity(forged, NOON_S) is None


def test_a_remembered_token_ends() -> None:
    there = verifier()
    good = token()
    assert there.identity(good, NOON_S) is not None
    assert there.identity(good, NOON_S + 100) is None
    assert there.identity(good, NOON_S + 100) is None
