"""steps.jsonl: complete, rotated, bounded; a disk that fails costs records and nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from decodeloop.engine.recorder import StepRecorder
from decodeloop.types import STEPS_SCHEMA as SCHEMA
from decodeloop.types import Provenance
from rig import Rig


def records(count=30):
    rig = Rig()
    rig.generate([1, 2, 3], max_tokens=count, ignore_eos=True)
    return rig.records


def written(path, **bounds):
    recorder = StepRecorder(path, Provenance("1.0", model_hash="abc"), **bounds)
    recorder.start()
    made = records()
    for record in made:
        recorder.observe(record)
    recorder.close()
    return recorder, made


def test_header_then_a_record_a_line(tmp_path):
    recorder, made = written(tmp_path / "steps.jsonl")
    header, *lines = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert header == {"schema": SCHEMA, "provenance": header["provenance"]}
    assert header["provenance"]["model_hash"] == "abc"
    assert [line["step"] for line in lines] == [record.step for record in made]
    assert lines[0]["rows"][0]["reason"] == "prefill"
    assert lines[0]["rows"][0]["token_ids"] is None
    assert recorder.lost == 0


def test_rotation_bounds_the_disk(tmp_path):
    path = tmp_path / "steps.jsonl"
    for _ in range(5):
        written(path, max_bytes=4000, files=3)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["steps.jsonl", "steps.jsonl.1", "steps.jsonl.2"]
    assert all(json.loads(file.read_text().splitlines()[0])["schema"] == SCHEMA for file in files)


def test_a_path_that_cannot_be_written_is_known_at_start(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        StepRecorder(tmp_path / "nowhere" / "steps.jsonl", Provenance("1.0")).start()


def test_a_full_disk_loses_records_and_counts_them(tmp_path):
    recorder, made = written(tmp_path / "steps.jsonl")
    recorder = StepRecorder(tmp_path / "steps.jsonl", Provenance("1.0"))
    recorder.start()
    recorder._close()
    recorder._path = Path("/dev/full")
    for record in made:
        recorder.observe(record)
    recorder.close()
    assert recorder.lost == len(made)


def test_a_full_queue_loses_records_and_counts_them(tmp_path):
    recorder = StepRecorder(tmp_path / "steps.jsonl", Provenance("1.0"), max_queued=5)
    made = records()
    for record in made:
        recorder.observe(record)
    assert recorder.lost == len(made) - 5


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "steps.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-40])
    _, made = written(path)
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["step"] for line in whole[-len(made) :]] == [record.step for record in made]


@pytest.mark.parametrize("rotate", ["moved", "deleted"])
def test_a_file_that_others_rotate_is_opened_anew(tmp_path, rotate):
    path, moved = tmp_path / "steps.jsonl", tmp_path / "steps.jsonl-20260101"
    recorder = StepRecorder(path, Provenance("1.0"))
    recorder.start()
    made = records()
    recorder.observe(made[0])
    recorder.flush()
    path.rename(moved) if rotate == "moved" else path.unlink()
    for record in made[1:]:
        recorder.observe(record)
    recorder.close()
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header["schema"] == SCHEMA
    assert [line["step"] for line in lines] == [record.step for record in made[1:]]
    assert recorder.lost == 0


def test_a_value_that_is_no_json_loses_its_record_and_no_other(tmp_path):
    recorder = StepRecorder(tmp_path / "steps.jsonl", Provenance("1.0"))
    recorder.start()
    made = records()
    recorder.observe(replace(made[0], predicted_ms=np.float64(1.5)))
    recorder.flush()
    recorder.observe(replace(made[1], predicted_ms=1j))
    recorder.flush()
    recorder.observe(made[2])
    recorder.close()
    _, *lines = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines] == [0, 2]
    assert recorder.counters() == {"step_records_lost_total": 1.0}
    assert "not JSON serializable" in recorder.warnings()[0]
