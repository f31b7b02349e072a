"""Governance from the command line."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from decodeloop.cli.environment import read_environment
from decodeloop.cli.main import app
from decodeloop.cli.reloading import ConfigFile
from decodeloop.cli.serve import ServeConfig
from decodeloop.config import ConfigError
from decodeloop.gateway.store.audit_file import AuditFile
from decodeloop.gateway.store.sqlite import SqliteBooks
from decodeloop.governance.audit import Entry, plain_seal, sealed
from decodeloop.governance.keys import digest_of
from decodeloop.governance.ledger import LedgerRow
from decodeloop.types import Identity, Usage

CONFIG = """
model: null
gateway:
  upstreams: {far: {url: "http://127.0.0.1:9"}}
governance:
  store: sqlite:%s
  keys: [{id: fixed, key: "${env:SECRET}", organization: acme}]
  prices: [{prompt: 1.0, completion: 4.0}]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECRET", "a secret of the environment")
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG % (tmp_path / "books.sqlite3"))
    return path


def run(*words: Any, **options: Any) -> str:
    got = CliRunner().invoke(app, [str(word) for word in words], **options)
    if got.exception is not None:
        raise got.exception
    return got.output


def test_a_key_is_told_once_and_kept_as_a_digest(file: Path) -> None:
    text = run("keys", "create", "--config", file, "--organization", "acme", "--user", "ana", "--days", "1").strip()
    assert len(text) > 50
    made, fixed = (json.loads(line) for line in run("keys", "list", "--config", file).splitlines())
    assert (made["organization"], made["user"], fixed["id"]) == ("acme", "ana", "fixed")
    assert made["until_s"] == pytest.approx(time.time() + 86400, abs=60)
    stored = b"".join(path.read_bytes() for path in file.parent.glob("books.sqlite3*"))
    assert text.encode() not in stored
    assert digest_of(text).encode() in stored
    run("keys", "revoke", made["id"], "--config", file)
    assert len(run("keys", "list", "--config", file).splitlines()) == 1
    with pytest.raises(ValueError, match="no key 'fixed' is stored"):
        run("keys", "revoke", "fixed", "--config", file)


def test_grants_and_budgets(file: Path) -> None:
    run("grants", "put", "-", "--config", file, input="id: g\nscope: {organization: acme}\nmodels: [tiny]\n")
    assert json.loads(run("grants", "list", "--config", file))["models"] == ["tiny"]
    with pytest.raises(ValueError, match="no such setting; choose from capture_content"):
        run("grants", "put", "-", "--config", file, input="id: g\nmodel: tiny\n")
    run("budgets", "set", "b", "12.5", "--config", file, "--organization", "acme", "--user", "*")
    assert run("budgets", "list", "--config", file) == "b  acme/*/-/-  12.5 money a month\n"
    with pytest.raises(ValueError, match="Invalid enum value 'apples'"):
        run("budgets", "set", "b", "1", "--config", file, "--unit", "apples")
    run("budgets", "remove", "b", "--config", file)
    run("grants", "remove", "g", "--config", file)
    assert run("budgets", "list", "--config", file) == ""


def test_the_ledger_is_exported(file: Path) -> None:
    async def enter() -> None:
        books = SqliteBooks(str(file.parent / "books.sqlite3"), instance="one", clock=time.time)
        await books.start()
        books.settle(
            LedgerRow(
                request_id="r", identity=Identity("acme", "ana"), model="tiny", usage=Usage(9, 0, 3), billed=21_000
            )
        )
        await books.close()

    asyncio.run(enter())
    rows = list(csv.DictReader(io.StringIO(run("ledger", "export", "--config", file))))
    assert [row["SkuMeter"] for row in rows] == ["Input Tokens", "Output Tokens"]
    out = file.parent / "focus.parquet"
    run("ledger", "export", "--config", file, "--out", out)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out).to_pydict()
    assert sum(table["BilledCost"]) == pytest.approx(21e-6)
    assert json.loads(run("ledger", "showback", "--config", file, "--by", "user"))["name"] == "acme/ana"
    with pytest.raises(ValueError, match=r"choose a name that ends with .csv or .parquet"):
        run("ledger", "export", "--config", file, "--out", "x.xlsx")


def test_configurations_are_validated_and_have_a_schema(file: Path) -> None:
    assert "good; 1 keys, 0 grants, 0 limits, 1 upstreams, 0 pools" in run("config", "validate", file)
    schema = json.loads(run("config", "schema"))
    jsonschema.validate(yaml.safe_load(file.read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"governance": {"limits": [{"id": 1}]}}, schema)
    file.write_text("governance: {store: 'sqlite:x', cedar: 'permit (everything'}\n")
    with pytest.raises(ValueError, match="cedar"):
        run("config", "validate", file)
    file.write_text("gateway: {upstreams: {a: {url: 'https://a', authorities: missing.pem}}}\n")
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        run("config", "validate", file)


def test_audit_verify_says_what_was_done_and_exits_1(tmp_path: Path) -> None:
    for name in ("one", "two"):
        chain = AuditFile(tmp_path, name, plain_seal)
        chain.start()
        for place in range(3):
            chain.write(Entry(at_s=float(place), kind="request"))
        chain.close()
    told = run("audit", "verify", tmp_path)
    assert told.count("3 entries, head 3:") == 2
    path = tmp_path / "two.audit.jsonl"
    path.write_text(path.read_text().replace('"at":1.0', '"at":9.0'))
    got = CliRunner().invoke(app, ["audit", "verify", str(tmp_path)])
    assert got.exit_code == 1
    assert "two.audit.jsonl: entry 2: its content is not what was sealed" in got.output
    with pytest.raises(ValueError, match="no audit chain"):
        run("audit", "verify", tmp_path / "nowhere")


def test_a_keyed_chain_needs_its_key(tmp_path: Path) -> None:
    chain = AuditFile(tmp_path, "one", sealed("the key"))
    chain.start()
    chain.write(Entry(at_s=0.0, kind="request"))
    chain.close()
    config = tmp_path / "c.yaml"
    config.write_text("governance: {audit: {key: the key}}\n")
    head = run("audit", "verify", tmp_path, "--config", config).split("head ")[1].strip()
    assert "1 entries" in run("audit", "verify", tmp_path, "--config", config, "--head", head)
    assert CliRunner().invoke(app, ["audit", "verify", str(tmp_path)]).exit_code == 1


def test_a_changed_file_is_seen_once_and_a_bad_one_is_told(file: Path) -> None:
    watched = ConfigFile(file, ServeConfig, read_environment())
    assert watched.changed() is None
    file.write_text(file.read_text() + "  limits: [{id: l, unit: requests, amount: 5, window: day}]\n")
    changed = watched.changed()
    assert changed is not None
    assert changed.governance.limits[0].amount == 5
    assert watched.changed() is None
    file.write_text(file.read_text() + "  moons: 3\n")
    with pytest.raises(ConfigError, match="moons: no such setting"):
        watched.changed()
    assert watched.changed() is None, "what is wrong is said once"
