"""Files that are cut, corrupted or not models at all: always an error that says so, never another."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodeloop.engine.models import ModelError
from decodeloop.engine.models.gguf_file import read_gguf
from decodeloop.engine.models.safetensors_file import read_safetensors
from decodeloop.engine.models.sources import open_checkpoint
from tiny import tiny_gguf, tiny_hf

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broken")
    tiny_hf("llama", path / "hf", layers=1)
    tiny_gguf(path / "hf", path / "model.gguf")
    return path


@pytest.fixture(scope="module")
def whole_gguf(directory: Path) -> bytes:
    return (directory / "model.gguf").read_bytes()


@pytest.fixture(scope="module")
def header_bytes(directory: Path, whole_gguf: bytes) -> int:
    reader = gguf.GGUFReader(directory / "model.gguf")
    return int(reader.data_offset)


@FUZZ
@given(data=st.data())
def test_a_gguf_cut_short_says_so(data: st.DataObject, whole_gguf: bytes, header_bytes: int, tmp_path: Path) -> None:
    length = data.draw(st.integers(0, header_bytes) | st.integers(0, len(whole_gguf) - 1))
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole_gguf[:length])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        open_checkpoint(path)


@FUZZ
@given(data=st.data())
def test_a_corrupt_header_is_an_error_or_harmless(
    data: st.DataObject, whole_gguf: bytes, header_bytes: int, tmp_path: Path
) -> None:
    corrupt = bytearray(whole_gguf)
    for _ in range(data.draw(st.integers(1, 4))):
        corrupt[data.draw(st.integers(0, header_bytes - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "corrupt.gguf"
    path.write_bytes(corrupt)
    said = "corrupt.gguf"
    try:
        checkpoint = open_checkpoint(path)
        assert checkpoint.tokenizer.vocab_size == checkpoint.config.vocab_size
    except ModelError as error:
        said = str(error)
    assert "corrupt.gguf" in said


@FUZZ
@given(data=st.data())
def test_a_corrupt_safetensors_header_is_an_error_or_harmless(
    data: st.DataObject, directory: Path, tmp_path: Path
) -> None:
    corrupt = bytearray((directory / "hf" / "model.safetensors").read_bytes())
    header = 8 + int.from_bytes(corrupt[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        corrupt[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "corrupt.safetensors"
    path.write_bytes(corrupt[: data.draw(st.sampled_from([header, len(corrupt)]))])
    try:
        for tensor in read_safetensors(path).values():
            tensor.float32()
    except ModelError:
        pass


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0]}, "not enough values"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"tensor x of shape \[2\] F32 has 4 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "bytes -8 to 0"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, r"shape \[2\.0\]"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "cut short: tensor x ends at byte"),
        ({"shape": [2], "data_offsets": [0, 8]}, "dtype"),
    ],
)
def test_a_safetensors_entry_that_cannot_be_is_refused(entry: dict[str, object], says: str, tmp_path: Path) -> None:
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelError, match=says):
        read_safetensors(tmp_path / "m.safetensors")


def written(path: Path, architecture: str = "llama", **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, values in tensors.items():
        writer.add_tensor(name.replace("__", "."), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_unknown_architecture_names_the_choices(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "mamba", token_embd__weight=np.zeros((4, 4), np.float32))
    with pytest.raises(ModelError, match=r"m\.gguf: no architecture 'mamba'; choose a model of llama, qwen3, gemma3"):
        open_checkpoint(path)
    with pytest.raises(ModelError, match=r"no tensor token_embd\.weight"):
        open_checkpoint(written(tmp_path / "n.gguf"))


def test_missing_and_misshapen_tensors_are_named(directory: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / "hf" / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((directory / "hf" / name).read_bytes())
    q, up = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"
    save_file({name: values for name, values in tensors.items() if name not in (q, up)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match=r"a llama model of 1 layers lacks layers\.0\.q, layers\.0\.up$"):
        open_checkpoint(tmp_path)
    save_file({**tensors, q: tensors[q][:-1]}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.weight is \[63, 64\]; the configuration says \[64, 64\]"):
        open_checkpoint(tmp_path)
    save_file({name: values for name, values in tensors.items() if "embed" not in name}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match=r"0 tensors are called \.\.\.embed_tokens\.weight"):
        open_checkpoint(tmp_path)


def test_types_that_cannot_be_read_are_named(directory: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(4, np.int8)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="tensor x has type I8; known are F32, F16, BF16"):
        read_safetensors(tmp_path / "m.safetensors")["x"].float32()


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="one part of 3; merge them first"):
        read_gguf(tmp_path / "m.gguf")


def test_the_header_reads_as_the_gguf_package_reads_it(directory: Path) -> None:
    path = directory / "model.gguf"
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    values = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert dict(ours.metadata) == values
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.format == tensor.tensor_type.name
        assert list(found.shape) == list(reversed(tensor.shape.tolist()))
        assert found.data.tobytes() == tensor.data.tobytes()


def test_what_is_no_model_is_refused_in_words(tmp_path: Path, directory: Path) -> None:
    def refused(path: Path, says: str) -> None:
        with pytest.raises(ModelError, match=says):
            open_checkpoint(path)

    refused(tmp_path / "nowhere", "nowhere: no such file or directory")
    refused(tmp_path, r"neither config\.json nor a GGUF file")
    (tmp_path / "empty.gguf").touch()
    refused(tmp_path / "empty.gguf", "an empty file")
    (tmp_path / "text.gguf").write_text("hello there")
    refused(tmp_path / "text.gguf", "not a GGUF file")
    refused(tmp_path, r"several GGUF files; name one of empty\.gguf, text\.gguf")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, r"config\.json is not JSON")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    refused(tmp_path, "lacks num_attention_heads")
    (tmp_path / "config.json").write_bytes((directory / "hf" / "config.json").read_bytes())
    refused(tmp_path, r"no \*\.safetensors \(only empty\.gguf, text\.gguf\)")
    (tmp_path / "m.safetensors").write_bytes(b"abc")
    refused(tmp_path, "not a safetensors file, or cut short")


def test_a_directory_with_one_gguf_is_that_gguf(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "only.gguf").write_bytes((directory / "model.gguf").read_bytes())
    assert open_checkpoint(tmp_path).path == tmp_path / "only.gguf"
