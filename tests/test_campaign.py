"""The campaign of hostile input detects every type of failure."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

PLANTED = {
    "traceback": "KeyError",
    "hang": "killed at the time limit",
    "memory": "MB",
    "crash": "exit code 9",
    "changed": "thesis.txt",
    "executed": "os.system",
    "connected": "192.0.2.1",
}


def test_every_sort_of_failure_is_noticed_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])  # for benchmarks/
    from benchmarks.campaign.supervisor import Limits, run_campaign

    kinds = {name: f"campaign_planted:{name}" for name in ("sound", *PLANTED)}
    cases = [f"{kind}:{number}" for number, kind in enumerate(kinds)]
    (tmp_path / "specimens").mkdir()
    limits = Limits(seconds=1.0, megabytes=250)
    summary = run_campaign(
        kinds, tmp_path / "specimens", tmp_path, tmp_path / "kept", jobs=2, only=cases, limits=limits
    )
    found = {each.kind: each for each in summary.results}
    assert found.pop("sound").verdict in ("accepted", "refused")
    assert {kind: result.verdict for kind, result in found.items()} == {kind: kind for kind in PLANTED}
    for number, (kind, words) in enumerate(PLANTED.items(), start=1):
        assert words in found[kind].detail
        repeat = (tmp_path / "kept" / f"{kind}-{number}" / "case.txt").read_text().splitlines()[0]
        assert repeat == f"{sys.executable} -m benchmarks.campaign --seed 0 --case {kind}:{number}"


def test_a_case_is_made_of_its_seed_and_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from benchmarks.campaign.mutate import damaged, damaged_json, damaged_toml

    def made() -> list[object]:
        rngs = [Random(f"0:images:{number}") for number in range(50)]
        texts = [damaged_json('{"a": [1, {"b": 2}]}', rng) + damaged_toml("[a]\nb = 1", rng) for rng in rngs]
        return [damaged(bytes(range(256)), rng) for rng in rngs] + texts

    assert made() == made()
    assert len(set(made())) > 90
