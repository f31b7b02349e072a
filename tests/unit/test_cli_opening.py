"""What a record says about the version that wrote it."""

import subprocess
from types import SimpleNamespace

import pytest

from decodeloop.cli import opening


@pytest.fixture
def repository(tmp_path):
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "first"], cwd=tmp_path, check=True)
    return tmp_path


def git_sha(monkeypatch, module):
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(opening, "__file__", str(module))
    return opening.provenance(SimpleNamespace(sha256="0"), "cpu", "").git_sha


def test_a_source_checkout_names_its_commit(repository, monkeypatch):
    assert len(git_sha(monkeypatch, repository / "src" / "decodeloop" / "cli" / "opening.py")) == 40


def test_a_release_inside_another_project_does_not_name_that_projects_commit(repository, monkeypatch):
    packages = repository / ".venv" / "lib" / "python3.11" / "site-packages"
    assert git_sha(monkeypatch, packages / "decodeloop" / "cli" / "opening.py") == ""
