"""What can't work is refused before the first request, with what was wrong and what would be right. (Case 22.)"""

import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from decodeloop.cli.environment import Environment
from decodeloop.cli.main import app
from decodeloop.cli.reloading import read_config
from decodeloop.cli.serve import ServeConfig
from decodeloop.config import ConfigError
from decodeloop.engine.build import build_engine
from decodeloop.engine.settings import EngineSettings
from tiny import tiny_hf


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_context": 0}, "max_context must be between 1 and"),
        ({"max_context": -5}, "max_context"),
        ({"threads": -1}, "threads must be between 0 and 1024, not -1"),
        ({"threads": 100_000}, "threads"),  # torch dies of it
        ({"max_sequences": 0}, "max_sequences"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"prefill_chunk": 0}, "prefill_chunk"),  # prompts would never end
        ({"block_tokens": 0}, "block_tokens"),
        ({"kv_memory_mb": -4}, "kv_memory_mb"),
        ({"draft_len": -1}, "draft_len"),
        ({"draft_len": 13}, "draft_len 13 is above max_draft_len 12"),
        ({"shadow_len": -1}, "shadow_len"),
        ({"default_max_tokens": 0}, "default_max_tokens"),
        ({"max_step_tokens": 31}, "max_step_tokens 31 can't hold a token of each of max_sequences 32"),
        ({"drafters": ("ngram", "suffix", "ngram")}, "each can be named once"),
    ],
)
def test_settings_have_bounds(setting, message):
    with pytest.raises(ValueError, match=message):
        EngineSettings(**setting)


def opened(tiny, spec, **settings):
    options = {"drafters": ("draft_model",), "drafter_options": {"draft_model": {"model": spec}}, "max_context": 128}
    chosen = replace(tiny.settings, **{**options, **settings})
    return build_engine(tiny.checkpoint, chosen, clock=float, runner=tiny.runner)


def test_a_draft_model_of_another_vocabulary_is_refused(tiny, tmp_path):
    path = tiny_hf("llama", tmp_path / "smaller", vocab_size=300)
    with pytest.raises(ValueError, match="a vocabulary of 300 tokens, the target one of 320"):
        opened(tiny, str(path))


def test_a_draft_model_of_another_tokenizer_is_refused(tiny, stranger, tmp_path):
    """Of the same size, which is all that engines usually look at: two ids have changed places."""
    path = shutil.copytree(stranger, tmp_path / "swapped")
    text = (path / "tokenizer.json").read_text()
    assert '"q": ' in text
    (path / "tokenizer.json").write_text(
        text.replace('"q": ', '"~~": ').replace('"z": ', '"q": ').replace('"~~": ', '"z": ')
    )
    with pytest.raises(ValueError, match=r"another tokenizer .* token \d+ is b'z' to it and b'q' to the target"):
        opened(tiny, str(path))
    assert opened(tiny, stranger).engine.proposers.names == ("draft_model",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", 'option "model"'),
        ("layers:0", "N in 1..2"),
        ("layers:3", "N in 1..2"),
        ("layers:x", "N in 1..2"),
        ("int4:layers", "N in 1..2"),
        ("/nowhere", "an existing path"),
    ],
)
def test_a_draft_model_that_is_none_is_refused(tiny, spec, message):
    with pytest.raises(ValueError, match=message):
        opened(tiny, spec)


def test_a_draft_models_memory_is_bounded_at_load(tiny):
    with pytest.raises(ValueError, match="0 MiB hold no KV block"):
        opened(tiny, "layers:1", draft_memory_mb=0)


def test_a_context_that_memory_cannot_hold_is_refused_with_the_numbers(tiny):
    with pytest.raises(ValueError, match=r"of 5120 tokens needs \d MiB .* kv_memory_mb is 1"):
        opened(tiny, "layers:1", **{"max_context": 5120, "kv_memory_mb": 1})


def test_a_junk_directory_is_no_draft_model(tiny, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match="neither config"):
        opened(tiny, str(tmp_path))


def test_options_of_nobody_are_refused(tiny):
    with pytest.raises(ValueError, match="no 'ngrm'; choose from"):
        opened(tiny, "layers:1", drafter_options={"draft_model": {"model": "layers:1"}, "ngrm": {"max_n": 3}})
    with pytest.raises(ValueError, match="policy fixed takes no options, got eagerness"):
        opened(tiny, "layers:1", policy="fixed", policy_options={"eagerness": 1})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\0", "not a text file"),
        (b"engine: [1, 2", "expected ',' or ']'"),
        (b"engin: {}", "engin: no such setting; choose from engine, "),
        (b"engine: {max_sequences: -3}", "engine: max_sequences must be between"),
        (b"engine: {draft_len: four}", "engine.draft_len"),
        (b"gateway: {port: 70000}", "gateway: port must be"),
        (b"model: ${NOPE}", "model: the environment has no NOPE"),
        (b"!!python/object/apply:os.system ['id']", "could not determine a constructor"),
        (b"- a list", "expected a mapping"),
    ],
)
def test_a_broken_configuration_is_one_line_that_names_the_file(tmp_path, content, message):
    path = tmp_path / "serve.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_config(path, ServeConfig, Environment(tmp_path, {}))
    said = str(refused.value)
    assert said.startswith(f"{path}: ")
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize("options", [["--seed", str(2**53)], ["--seed", "-1"], ["--temperature", "1e999"]])
def test_generate_refuses_what_the_api_refuses(options):
    done = CliRunner().invoke(app, ["generate", "x", "--model", "/nowhere", *options])
    assert done.exit_code == 2
    assert options[0] in done.output
