"""What a comparison is about to run: which methods, with which settings, beside which runs that are there already."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearkin.errors import UserError, unknown_name
from nearkin.experiments.runs import full_tables
from nearkin.files import read_json, write_json
from nearkin.methods import Method, known_methods, method_class
from nearkin.training import Run, Settings
from nearkin.training.prepare import load_splits
from nearkin.training.settings import by_section, knows, make_settings

PROTOCOLS: dict[str, dict[str, Any]] = {
    "fair": {"validation": 0.25, "keep": "best-on-validation"},
    "paper": {"validation": 0.0, "keep": "best-on-test"},
}
NOT_FREE = ("keep", "seed", "validation")  # what a protocol and the number of seeds decide


def check_request(
    data: object, seeds: int, protocol: str, settings: Mapping[str, Any], jobs: int, tune: int, concatenate: bool
) -> None:
    """Refuses what cannot be meant."""
    if not isinstance(data, str | Path):
        kind = type(data).__name__
        raise UserError(
            f"a comparison is many runs, which all read their data by themselves, so it takes a path or a name, not a "
            f'{kind}; write arrays to a file first: numpy.savez("data.npz", vectors=X, labels=y)'
        )
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    for what, number in (("seed", seeds), ("job", jobs)):
        if number < 1:
            raise UserError(f"a comparison needs at least one {what}, not {number}")
    if tune < 0:
        raise UserError(f"the number of trials must be 0 or more, not {tune}")
    if tune and settings.get("epochs") == 0:
        raise UserError("trials with epochs=0 would choose among untrained models; give them epochs")
    if protocol == "paper" and (tune or concatenate):
        what = "tune" if tune else "concatenate"
        raise UserError(f"{what} needs validation classes to choose on, and 'paper' has none; use protocol=\"fair\"")
    if concatenate and seeds == 1:
        raise UserError("concatenate joins the models of several seeds; use seeds=2 or more")
    for fixed in NOT_FREE:
        if fixed in settings:
            raise UserError(f"{fixed} is decided by the protocol and the number of seeds; leave it out")


def methods_by_name(methods: str | Sequence[str | Method]) -> dict[str, dict[str, Any]]:
    """The methods in the order given, each with its own settings: those of an object, none for a name.

    >>> list(methods_by_name("rank,triplet"))
    ['rank', 'triplet']
    """
    given = methods.split(",") if isinstance(methods, str) else list(methods)
    if given == ["all"]:
        return {method.name: {} for method in known_methods() if method.in_all}
    found: dict[str, dict[str, Any]] = {}
    for each in given:
        if not isinstance(each, str | Method):
            raise UserError(f"a method is a name or an object such as Magnet(alpha=2.0), not {each!r}")
        name = method_class(each.strip()).name if isinstance(each, str) else each.name
        own = {} if isinstance(each, str) else each.settings()
        if found.setdefault(name, own) != own:
            raise UserError(f"'{name}' is there twice with different settings; compare it in two folders")
    return found


def settings_of(name: str, own: Mapping[str, dict[str, Any]], data: str, settings: Mapping[str, Any]) -> Settings:
    """The settings as far as this method has them; each must be a setting of at least one of the methods."""
    for setting, value in settings.items():
        if not any(knows(each, setting) for each in own):
            by_section(name, {setting: value})  # says which settings there are
    return make_settings(data, name, {k: v for k, v in settings.items() if knows(name, k)} | own[name])


def check_same_settings(out: Path, protocol: str, wanted: dict[str, Settings], tune: int) -> None:
    """Refuses to mix runs of different settings in one folder; more methods, seeds and trials are welcome.

    Trials may be added to trials, but not below runs whose settings fewer trials chose.
    """
    file = out / "settings.json"
    now: dict[str, Any] = {name: {"protocol": protocol} | full_tables(each) for name, each in wanted.items()}
    before: dict[str, Any] = read_json(file, dict) if file.is_file() else {}
    for name in wanted:
        then = dict(before.get(name, {}))
        other_trials = then.pop("trials", 0) != tune
        has_runs = any(run.config_file.is_file() for run in runs_of(out, name))
        if (has_runs and other_trials) or ((has_runs or trials_of(out, name)) and then != now[name]):
            raise UserError(
                f"{out} holds runs of {name} with other settings; repeat those, or choose another folder with out=..."
            )
    write_json(file, before | {name: tables | {"trials": tune} for name, tables in now.items()})


def check_same_data(out: Path, wanted: dict[str, Settings], seeds: int) -> None:
    """Refuses data that have changed since a run that is there already, or that leave nothing to test on."""
    data = next(iter(wanted.values())).data
    for seed in range(seeds):
        splits = load_splits(data, seed)
        if splits.test is None:
            raise UserError(f"{data.source} has no test split here to compare on; use another split")
        for name in wanted:
            for run in [Run(out / f"{name}-{seed}"), *(trials_of(out, name) if seed == 0 else [])]:
                run.check_data(splits.digest())


def runs_of(out: Path, method: str) -> list[Run]:
    """The runs that a folder holds, of whatever seed."""
    return [Run(folder) for folder in out.glob(f"{method}-*") if folder.name.removeprefix(f"{method}-").isdecimal()]


def trials_of(out: Path, method: str) -> list[Run]:
    """The trials that a folder holds."""
    return runs_of(out / "tune", method)


def with_settings(settings: Settings, values: dict[str, Any]) -> Settings:
    return settings.changed(**by_section(settings.method, values))


def command_of(
    data: str,
    methods: str | Sequence[str | Method],
    names: Iterable[str],
    seeds: int,
    protocol: str,
    settings: Mapping[str, Any],
    tune: int,
    concatenate: bool,
    out: Path,
) -> str:
    """What to type to repeat a comparison: a command, or a call where methods were given as objects.

    >>> command_of("my photos", ["rank"], ["rank"], 3, "fair", {"epochs": 5}, 0, False, Path("out"))
    "nearkin compare 'my photos' --methods rank --seeds 3 --protocol fair --set epochs=5 --out out"
    """
    if any(isinstance(method, Method) for method in methods):
        options = {"seeds": seeds, "protocol": protocol, "tune": tune, "concatenate": concatenate, "out": str(out)}
        words = [f"{name}={value!r}" for name, value in {**options, **settings}.items()]
        return f"nearkin.compare({', '.join([repr(data), repr(list(methods)), *words])})"
    words = ["nearkin", "compare", data, "--methods", ",".join(names), "--seeds", str(seeds), "--protocol", protocol]
    words += ["--tune", str(tune)] if tune else []
    words += ["--concatenate"] if concatenate else []
    return shlex.join([*words, *set_options(settings), "--out", str(out)])


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of a command.

    >>> set_options({"epochs": 5, "freeze_backbone": True})
    ['--set', 'epochs=5', '--set', 'freeze_backbone=true']
    """
    texts = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items())
    return [word for text in texts for word in ("--set", text)]
