"""The chain: whatever is done to it shows."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from books_rig import ANA
from decodeloop.gateway.store.audit_file import AuditFile, chain_files, verify_file
from decodeloop.governance.audit import Entry, Head, Seal, chained, head_line, plain_seal, read_head, sealed, verify

SEALS = {"plain": plain_seal, "keyed": sealed("a key")}


def chain(count: int, seal: Seal = plain_seal) -> tuple[list[str], Head]:
    head, lines = Head(), []
    for place in range(count):
        entry = Entry(at_s=float(place), kind="request", identity=ANA, request_id=f"r{place}", decision="allowed")
        line, head = chained(entry, head, seal)
        lines.append(line)
    return lines, head


@pytest.mark.parametrize("seal", SEALS.values(), ids=SEALS)
def test_a_chain_verifies(seal: Seal) -> None:
    lines, head = chain(5, seal)
    assert verify(lines, seal, head) == (head, None)
    assert verify([*lines, chained(Entry(at_s=9, kind="x"), head, seal)[0]], seal, head)[1] is None, "it may go on"


@settings(max_examples=60)
@given(st.sampled_from(["edit", "delete", "move", "repeat", "insert", "cut"]), st.integers(0, 5), st.integers(0, 5))
def test_any_change_shows(what: str, place: int, other: int) -> None:
    lines, head = chain(6)
    changed = list(lines)
    if what == "edit":
        changed[place] = changed[place].replace(f'"r{place}"', '"r9"')
    elif what == "delete":
        del changed[place]
    elif what == "move":
        changed[place], changed[other] = changed[other], changed[place]
    elif what == "repeat":
        changed.insert(other, lines[place])
    elif what == "insert":
        changed.insert(place, chain(1)[0][0].replace("r0", "r7"))
    else:
        changed = changed[:place]
    if changed == lines:
        return
    got, fault = verify(changed, plain_seal, head)
    assert fault is not None
    assert fault.place == got.count + 1


def test_a_chain_made_anew_needs_the_key() -> None:
    forged, head = chain(3, sealed("a guess"))
    assert verify(forged, sealed("a key"))[1] is not None
    with pytest.raises(ValueError, match="changed, or sealed with another key"):
        read_head(head_line(head, sealed("a guess")), sealed("a key"))


def test_a_head_of_another_chain() -> None:
    lines, _ = chain(3)
    _, fault = verify(lines, plain_seal, Head(3, "0" * 64))
    assert fault is not None
    assert "head was written for" in fault.what


def written(directory: Path, count: int, seal: Seal = plain_seal, name: str = "one") -> Path:
    file = AuditFile(directory, name, seal)
    file.start()
    for place in range(count):
        file.write(Entry(at_s=float(place), kind="request", identity=ANA, request_id=f"r{place}"))
    file.close()
    return directory / f"{name}.audit.jsonl"


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path, 3)
    path = written(tmp_path, 2)
    head, fault = verify_file(path, plain_seal)
    assert (head.count, fault) == (5, None)
    assert chain_files(tmp_path) == [path]
    assert json.loads(path.read_text().splitlines()[0])["who"] == ["acme", "ana", "coder", "chat", "key-ana"]


def test_a_half_written_line_is_cut_off_at_the_next_start(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    with open(path, "a") as file:
        file.write('{"seq": 4, "at"')
    assert verify_file(path, plain_seal)[1] is not None
    written(tmp_path, 1)
    head, fault = verify_file(path, plain_seal)
    assert (head.count, fault) == (4, None)


def test_a_cut_end_shows_by_the_head(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:3]))
    _, fault = verify_file(path, plain_seal)
    assert fault is not None
    assert "5 entries were written, 3 are here" in fault.what
    with pytest.raises(ValueError, match="move it away to begin a new chain"):
        written(tmp_path, 1)
    path.unlink()
    assert chain_files(tmp_path) == [path], "its head is still there"
    assert verify_file(path, plain_seal)[1] is not None


def test_both_cut_together_show_by_a_head_kept_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    kept, _ = verify_file(path, plain_seal)
    for each in tmp_path.iterdir():
        each.unlink()
    written(tmp_path, 3)
    assert verify_file(path, plain_seal)[1] is None
    assert verify_file(path, plain_seal, kept)[1] is not None


def test_what_cannot_be_written_is_counted_and_told(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    file = AuditFile(directory, "one", plain_seal)
    file.start()
    file.write(Entry(at_s=0.0, kind="request"))
    while not (directory / "one.audit.head").exists():
        time.sleep(0.001)
    moved = directory.rename(tmp_path / "gone")
    file.write(Entry(at_s=1.0, kind="request"))
    while file.lost == 0:
        time.sleep(0.001)
    moved.rename(directory)
    file.write(Entry(at_s=2.0, kind="request"))
    file.close()
    entries = [json.loads(line) for line in (directory / "one.audit.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["request", "request", "system"]
    assert entries[-1]["details"] == {"entries": 1}
    assert verify_file(directory / "one.audit.jsonl", plain_seal)[1] is None
