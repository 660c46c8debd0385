"""The plan of a comparison: the settings of every method, checked against the runs that already exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.data import Splits
from nearkin.data.summary import counted
from nearkin.errors import UserError, unknown_name
from nearkin.experiments.runs import Task, full_tables
from nearkin.experiments.tuning import stops_of
from nearkin.files import read_json
from nearkin.methods import LossModule, Method, known_methods, make_method, method_class, parse_settings, takes_batches
from nearkin.training import Run, Settings
from nearkin.training.defaults import resolved
from nearkin.training.objects import Objects, batches_of, copied, kind_of, module_digest
from nearkin.training.prepare import build_model, load_splits
from nearkin.training.settings import by_section, knows, make_settings

Methods = str | Method | nn.Module | Sequence[str | Method | nn.Module]

PROTOCOLS: dict[str, dict[str, Any]] = {
    "fair": {"validation": 0.25, "keep": "best-on-validation"},
    "paper": {"validation": 0.0, "keep": "best-on-test"},
}
NEXT_METHOD = re.compile(r",(?!\s*\w+=)")  # a comma, but not one between the settings of a method
NOT_FREE = ("keep", "seed", "validation")  # set by the protocol and the number of seeds
SAME_EPOCHS = ("epochs", "stop_after", "evaluate_every", "patience")  # all rows train and choose equally


@dataclass(frozen=True)
class Row:
    """A row of the table: the settings and objects of its runs.

    Attributes:
        settings: settings of all its runs, except for the seed.
        given: settings that the user set; tuning does not change them, except for the learning rate.
        objects: objects that settings cannot describe; every run trains a copy.
    """

    settings: Settings
    given: Collection[str]
    objects: Objects

    def changed(self, values: dict[str, Any]) -> Row:
        """The row with other settings; tuning may have found some of them (see `Method.searched`)."""
        values = self.settings.make_method().found(values)
        return replace(self, settings=self.settings.changed(**by_section(self.settings.method, values)))

    def splits(self, seed: int = 0) -> Splits:
        return load_splits(self.settings.data, seed, self.objects.get("dataset"))

    def resolved(self) -> Settings:
        """The settings with every default that depends on the data filled in."""
        backbone = copied(self.objects).get("backbone")
        return resolved(self.settings, self.splits(), self.settings.make_method(), backbone)

    def task(self, name: str, folder: Path, tested: bool = True) -> Task:
        return Task(name, self.settings, folder, tested, self.objects)


def check_request(
    seeds: int, protocol: str, settings: Mapping[str, Any], jobs: int, tune: int, concatenate: bool
) -> None:
    """Raises for arguments that make no sense, alone or together."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    for name, number, least in (("seeds", seeds, 1), ("jobs", jobs, 1), ("tune", tune, 0)):
        if type(number) is not int or number < least:
            raise UserError(f"{name} must be an integer >= {least}, got {number!r}")
    if tune == 1:
        raise UserError("the first trial has the default settings, so tune=1 cannot choose; use tune=9 or more")
    if tune and settings.get("epochs") == 0:
        raise UserError("tuning with epochs=0 would choose among untrained models; use epochs=1 or more")
    if protocol == "paper" and concatenate:
        raise UserError("concatenate needs validation classes, and protocol 'paper' has none; use protocol=\"fair\"")
    if concatenate and seeds == 1:
        raise UserError("concatenate needs the models of several seeds; use seeds=2 or more")
    for fixed in NOT_FREE:
        if fixed in settings:
            raise UserError(f"{fixed} is set by the protocol and the number of seeds; leave it out")
    if "source" in settings:
        raise UserError("data is given twice; leave out source")


def rows_of(
    methods: Methods, data: str, settings: Mapping[str, Any], protocol: str, objects: Objects
) -> dict[str, Row]:
    """The rows by name; each gets the settings that its method has."""
    named = methods_by_name(methods, settings)
    kinds = {name: method_name(method) for name, method in named.items()}
    shared = {"patience": 0, **settings, **PROTOCOLS[protocol]}
    for setting, value in settings.items():  # at least one method must have it
        if not any(_applies(setting, kind) for kind in kinds.values()):
            make_settings(data, next(iter(kinds.values())), {setting: value}).make_method()  # raises with the reason
    rows: dict[str, Row] = {}
    for name, method in named.items():
        own = own_settings(method) if isinstance(method, str) else method.settings()
        known = {setting: value for setting, value in shared.items() if _applies(setting, kinds[name])}
        loss = Objects(method=method) if isinstance(method, LossModule) else Objects()
        rows[name] = Row(make_settings(data, kinds[name], known | own), {*settings, *own}, objects | loss)
    return rows


def _applies(setting: str, kind: str) -> bool:
    """Whether a setting for all rows is for this method, too."""
    return knows(kind, setting) and (setting != "batches" or takes_batches(make_method(kind)))


def methods_by_name(methods: Methods, settings: Mapping[str, Any] | None = None) -> dict[str, str | Method]:
    """The methods in the given order, by row name; the row of a loss module is named after its class.

    >>> methods_by_name(["rank", "rank:alpha=2", nn.TripletMarginLoss(), nn.TripletMarginLoss()]).keys()
    dict_keys(['rank', 'rank,alpha=2', 'TripletMarginLoss', 'TripletMarginLoss_2'])
    """
    found: dict[str, str | Method] = {}
    for each in listed(methods):
        if not isinstance(each, str | Method | nn.Module):
            raise UserError(
                f"a method must be a name, an object such as Magnet(alpha=2.0) or a loss module, got {kind_of(each)}"
            )
        method = LossModule.of(each, **batches_of(settings or {})) if isinstance(each, nn.Module) else each
        if isinstance(method, LossModule) and hasattr(method, "loss"):
            stem = type(method.loss).__name__
            found[next(name for name in _numbered(stem) if name not in found)] = method
            continue
        kind = method_class(method_name(method))
        if not kind.listed:
            raise UserError(
                f"'{kind.name}' stands for your own loss module; pass the module itself: "
                "nearkin.compare(data, [MyLoss()])"
            )
        if isinstance(method, Method) and type(method) is not kind:
            raise UserError(
                f"{type(method).__name__} is not the registered method '{kind.name}'; give it a name of its own "
                "and register it with the decorator nearkin.methods.register"
            )
        name = row_name(method) if isinstance(method, str) else kind.name
        if found.setdefault(name, method) != method:
            raise UserError(f"'{name}' is given twice with different settings; compare it in two folders")
    if not found:
        raise UserError("no method given; give at least one")
    return found


def listed(methods: Methods) -> Sequence[str | Method | nn.Module]:
    """The methods as a list.

    >>> listed("rank, rank:alpha=2,per_class=4, triplet")
    ['rank', 'rank:alpha=2,per_class=4', 'triplet']
    """
    if isinstance(methods, Method | nn.Module):
        return [methods]
    given = NEXT_METHOD.split(methods) if isinstance(methods, str) else methods
    names = [each.strip() if isinstance(each, str) else each for each in given]
    return [method.name for method in known_methods() if method.in_all] if names == ["all"] else names


def method_name(method: str | Method) -> str:
    """The name of a method, without the settings of its row.

    >>> method_name("rank:batches=neighbourhoods")
    'rank'
    """
    return method.partition(":")[0] if isinstance(method, str) else method.name


def own_settings(method: str) -> dict[str, Any]:
    """The settings of one row: those of the method and of its training, but not what all rows share.

    >>> own_settings("rank:batches=neighbourhoods,per_class=4")
    {'batches': 'neighbourhoods', 'per_class': 4}
    """
    name, own = parse_settings(method)
    for section, table in by_section(name, own).items():
        for setting in table:
            if section in ("data", "model") or setting in (*NOT_FREE, *SAME_EPOCHS):
                raise UserError(f"{setting} is the same for all rows of a comparison; leave it out of '{method}'")
    return own


def row_name(method: str) -> str:
    """The name of a row, which is also that of its folders.

    >>> row_name("divide-and-conquer:wraps=rank")
    'divide-and-conquer,wraps=rank'
    """
    return re.sub(r"[^\w.,=+-]", "-", method.replace(":", ",", 1).replace(" ", ""))


def _numbered(stem: str) -> Iterable[str]:
    return chain([stem], (f"{stem}_{number}" for number in count(2)))


def check_objects(rows: Mapping[str, Row], jobs: int) -> None:
    """Raises for objects that cannot be compared; tries losses and the backbone before any run starts."""
    if jobs > 1 and any(row.objects for row in rows.values()):
        raise UserError(
            "data, backbones and losses in memory cannot be sent to other processes, so their runs cannot be parallel; "
            "use jobs=1"
        )
    losses = [row for row in rows.values() if "method" in row.objects]
    own_backbone = "backbone" in next(iter(rows.values())).objects
    for row in losses or ([first_possible(rows)] if own_backbone else []):
        objects, settings, train = copied(row.objects), row.resolved(), row.splits().train
        spec = build_model(settings, train, 1, objects.get("backbone")).spec
        if "method" in objects:
            objects["method"].check(train.dense_labels, spec.dim, settings.training.batch_size, spec.normalize)


def first_possible(rows: Mapping[str, Row]) -> Row:
    """The first row whose defaults can be filled in; others will be left out of the table."""
    problems: list[UserError] = []
    for row in rows.values():
        try:
            row.resolved()
        except UserError as error:
            problems.append(error)
        else:
            return row
    raise problems[0]


def check_same_settings(out: Path, protocol: str, rows: Mapping[str, Row], tune: int) -> dict[str, Any]:
    """Raises if the folder has runs with other settings; methods, seeds and trials may be added.

    Trials cannot be added once there are runs whose settings fewer trials chose, or if all would stop at other epochs.

    Returns:
        The content of the folder's ``settings.json``, by row.
    """
    file = out / "settings.json"
    now = {name: {"protocol": protocol, **_described(row)} for name, row in rows.items()}
    before: dict[str, Any] = read_json(file, dict) if file.is_file() else {}
    for name, row in rows.items():
        then = _with_new_settings(before.get(name, {}))
        tuned = then.pop("trials", 0)
        runs, trials = runs_of(out, name), trials_of(out, name)
        here, another = f"{out} has {'runs' if runs else 'trials'} of {name}", "another folder: out=..."
        if (runs or trials) and (changed := _first_change(then, now[name])):
            raise UserError(f"{here} with other settings: {changed}; use the same settings, or {another}")
        if runs and tuned != tune:
            how = f"tuned with {counted(tuned, 'trial')}" if tuned else "without tuning"
            raise UserError(f"{here} {how}, which cannot change any more; use tune={tuned}, or {another}")
        if trials and tuned and not tune:
            raise UserError(f"{here}, which would stay unused; use tune={tuned}, or {another}")
        if trials and tuned != tune:
            stops, stops_before = (stops_of(number, row.settings.training) for number in (tune, tuned))
            if stops != stops_before:
                raise UserError(
                    f"{here} that stop after {stops_before} epochs; with tune={tune}, they would stop after {stops}; "
                    f"use tune={tuned}, or {another}"
                )
        for run in [*runs, *trials]:
            if (other := run.settings().training.epochs) != row.settings.training.epochs:
                raise UserError(
                    f"{run.folder} was trained for {other} epochs instead of {row.settings.training.epochs}; "
                    f"delete it, or use {another}"
                )
    return before | {name: tables | {"trials": tune} for name, tables in now.items()}


def _first_change(then: object, now: object, name: str = "settings") -> str:
    """The first setting that differs, for a message; empty if none does.

    >>> _first_change({"data": {"source": "a"}}, {"data": {"source": "b"}})
    "source was 'a', now it is 'b'"
    """
    if then == now:
        return ""
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        return f"{name} was {then!r}, now it is {now!r}"
    changes = (_first_change(then.get(each), now.get(each), each) for each in {**then, **now})
    return next(filter(None, changes), "")


def _with_new_settings(tables: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version described, with the defaults of settings that it did not have."""
    known = {name: table for name, table in tables.items() if name in ("data", "model", "method", "training")}
    return tables | (full_tables(Settings.from_tables(known)) if known else {})


def _described(row: Row) -> dict[str, Any]:
    """All settings of a row, and hashes of its modules; the runs themselves have a digest of the data."""
    tables: dict[str, Any] = full_tables(row.settings)
    if "dataset" in row.objects:
        tables["data"]["source"] = ""
    modules = backbone_digest(row)
    if isinstance(method := row.objects.get("method"), LossModule):
        modules["loss"] = module_digest(method.loss, weights=False)  # training changes them
    return tables | ({"modules": modules} if modules else {})


def backbone_digest(row: Row) -> dict[str, str]:
    """A hash of the user's own backbone; includes its weights if training starts from them."""
    backbone, model = row.objects.get("backbone"), row.settings.model
    starts_from_them = model.weights in ("", "own") and not model.init
    return {} if backbone is None else {"backbone": module_digest(backbone, weights=starts_from_them)}


def check_same_data(out: Path, rows: Mapping[str, Row], trial_rows: Mapping[str, Row], seeds: int) -> None:
    """Raises if the data have changed since an existing run or trial, or have no test split."""
    first = next(iter(rows.values()))
    for seed in range(seeds):
        splits = first.splits(seed)
        if splits.test is None:
            raise UserError(f"{first.settings.data.source} has no test split to compare on; choose another split")
        for name in rows:
            Run(out / f"{name}-{seed}").check_data(splits.digest())
    trials = [trial for name in trial_rows for trial in trials_of(out, name)]
    if trials:
        digest = next(iter(trial_rows.values())).splits().digest()
        for trial in trials:
            trial.check_data(digest)


def runs_of(out: Path, method: str) -> list[Run]:
    """The runs of a method in a folder that have begun, with any seed."""
    folders = (each for each in out.glob(f"{method}-*") if each.name.removeprefix(f"{method}-").isdecimal())
    return [run for run in map(Run, folders) if run.config_file.is_file()]


def trials_of(out: Path, method: str) -> list[Run]:
    """The trials of a method in a folder."""
    return runs_of(out / "tune", method)


def command_of(
    data: str,
    methods: Methods,
    seeds: int,
    protocol: str,
    settings: Mapping[str, Any],
    tune: int,
    concatenate: bool,
    out: Path,
    objects: Objects,
) -> str:
    """The command that repeats a comparison, or the Python call if it needs objects.

    >>> command_of("my photos", ["rank"], 3, "fair", {"epochs": 5}, 0, False, Path("out"), Objects())
    "nearkin compare 'my photos' --methods rank --seeds 3 --protocol fair --set epochs=5 --out out"
    """
    given = listed(methods)
    names = [each for each in given if isinstance(each, str)]
    if objects or len(names) < len(given):
        options = {"seeds": seeds, "protocol": protocol, "tune": tune, "concatenate": concatenate, "out": str(out)}
        options |= {**settings, **{name: value for name, value in objects.items() if name == "backbone"}}
        words = [f"{name}={_code(value)}" for name, value in options.items()]
        source, rows = "..." if "dataset" in objects else repr(data), ", ".join(map(_code, given))
        return f"nearkin.compare({', '.join([source, f'[{rows}]', *words])})"
    words = ["nearkin", "compare", data, "--methods", ",".join(names), "--seeds", str(seeds), "--protocol", protocol]
    words += ["--tune", str(tune)] if tune else []
    words += ["--concatenate"] if concatenate else []
    return shlex.join([*words, *set_options(settings), "--out", str(out)])


def _code(value: Any) -> str:
    """A value as Python code; only the class of a module."""
    if isinstance(value, LossModule):
        return f"LossModule.of({_code(value.loss)}, per_class={value.per_class})"
    return f"{type(value).__name__}(...)" if isinstance(value, nn.Module) else repr(value)


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as command-line options.

    >>> set_options({"epochs": 5, "freeze_backbone": True})
    ['--set', 'epochs=5', '--set', 'freeze_backbone=true']
    """
    texts = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items())
    return [word for text in texts for word in ("--set", text)]
