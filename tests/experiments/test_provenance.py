"""A result says by which commit it was made, also on a machine that has the files without the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nearkin.errors import UserError
from nearkin.experiments.provenance import commit_of, note_commit

IDENTITY = ("-c", "user.name=one", "-c", "user.email=one@example.org")


def checkout(root: Path) -> Path:
    """A repository with one commit; returns its package."""
    package = root / "src" / "nearkin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("version = 1\n")
    (root / ".gitignore").write_text("COMMIT\n")
    for command in (["init", "-q"], ["add", "-A"], [*IDENTITY, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return package


def test_a_copy_without_the_repository_knows_its_commit_until_it_is_changed(tmp_path: Path) -> None:
    package = checkout(tmp_path / "one")
    commit = commit_of(package)
    assert commit and "-" not in commit
    note_commit(package)
    assert commit_of(package) == commit  # the note itself changes nothing
    (tmp_path / "one" / ".git").rename(tmp_path / "elsewhere")
    assert commit_of(package) == commit
    (package / "__init__.py").write_text("version = 2\n")
    assert commit_of(package) == f"{commit}-dirty"
    (tmp_path / "one" / "COMMIT").write_text("")
    assert commit_of(package) is None
    with pytest.raises(UserError, match="is not a git checkout"):
        note_commit(package)


def test_changes_are_told_in_a_checkout_too(tmp_path: Path) -> None:
    package = checkout(tmp_path / "one")
    commit = commit_of(package)
    (package / "__init__.py").write_text("version = 2\n")
    note_commit(package)
    (tmp_path / "one" / ".git").rename(tmp_path / "elsewhere")
    assert commit_of(package) == f"{commit}-dirty"


def test_files_copied_over_an_older_checkout_have_the_noted_commit(tmp_path: Path) -> None:
    old, new = checkout(tmp_path / "old"), checkout(tmp_path / "new")
    (new / "__init__.py").write_text("version = 2\n")
    subprocess.run(["git", "-C", str(new), *IDENTITY, "commit", "-qam", "second"], check=True)
    note_commit(new)
    (old / "__init__.py").write_text("version = 2\n")
    (tmp_path / "old" / "COMMIT").write_text((tmp_path / "new" / "COMMIT").read_text())
    assert commit_of(old) == commit_of(new)
