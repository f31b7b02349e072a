"""Compiled kernels are those of the sources beside them, or say that they are not."""

import sys
from types import ModuleType

import pytest

from compiler import needs_compiled
from decodeloop.engine import kernels
from decodeloop.engine.kernels.sources import digest


def built_from(sources):
    module = ModuleType(kernels.MODULE)
    module.sources = sources
    return module


def test_the_build_and_the_check_read_the_sources_alike():
    needs_compiled()
    assert kernels.load().sources == digest()


def test_other_sources_are_warned_of(monkeypatch):
    monkeypatch.setitem(sys.modules, kernels.MODULE, built_from("others"))
    with pytest.warns(RuntimeWarning, match="make setup"):
        kernels.load()


def test_a_module_older_than_the_check_is_outdated():
    assert kernels.outdated(ModuleType(kernels.MODULE)) is not None


def test_without_sources_nothing_is_outdated(monkeypatch):
    monkeypatch.setattr(kernels, "digest", lambda: None)
    assert kernels.outdated(built_from("any")) is None


def test_every_source_counts_by_name_and_content(tmp_path):
    assert digest(tmp_path) is None
    (tmp_path / "isa").mkdir()
    digests = set()
    for name, content in [("a.cpp", "1"), ("isa/b.h", "2"), ("isa/b.h", "3"), ("notes.txt", "4")]:
        (tmp_path / name).write_text(content)
        digests.add(digest(tmp_path))
    (tmp_path / "a.cpp").rename(tmp_path / "c.cpp")
    digests.add(digest(tmp_path))
    assert len(digests) == 4
