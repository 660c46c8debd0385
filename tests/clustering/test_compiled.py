"""Numba's cache is used until compiled code changes, and only until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearkin.clustering import _compiled


def test_only_a_change_of_compiled_code_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "PACKAGE", tmp_path)
    (tmp_path / "room").mkdir()

    def digest_with(file: str, text: str) -> str:
        (tmp_path / "room" / file).write_text(text)
        digest: str = _compiled._digest_of_sources.__wrapped__()
        return digest

    first = digest_with("_solver.py", "1")
    assert digest_with("__init__.py", "import this") == digest_with("plain.py", "2") == first
    assert digest_with("_solver.py", "3") != first
