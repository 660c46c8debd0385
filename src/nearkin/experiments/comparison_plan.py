"""What a comparison is about to run: which methods, with which settings, beside which runs that are there already."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import nn

from nearkin.data import Splits
from nearkin.errors import UserError, unknown_name
from nearkin.experiments.runs import Task, full_tables
from nearkin.files import read_json
from nearkin.methods import LossModule, Method, known_methods, method_class
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
NOT_FREE = ("keep", "seed", "validation")  # what a protocol and the number of seeds decide


@dataclass(frozen=True)
class Row:
    """A row of the table: what all of its runs are trained with.

    Attributes:
        settings: of its runs, but for the seed.
        given: the settings that the user chose; a search leaves them alone, but for the learning rate.
        objects: what no setting describes; every run trains a copy.
    """

    settings: Settings
    given: Collection[str]
    objects: Objects

    def changed(self, values: dict[str, Any]) -> Row:
        return replace(self, settings=self.settings.changed(**by_section(self.settings.method, values)))

    def splits(self, seed: int = 0) -> Splits:
        return load_splits(self.settings.data, seed, self.objects.get("dataset"))

    def resolved(self) -> Settings:
        """The settings of a run with every default that depends on the data."""
        backbone = copied(self.objects).get("backbone")
        return resolved(self.settings, self.splits(), self.settings.make_method(), backbone)

    def task(self, name: str, folder: Path, tested: bool = True) -> Task:
        return Task(name, self.settings, folder, tested, self.objects)


def check_request(
    seeds: int, protocol: str, settings: Mapping[str, Any], jobs: int, tune: int, concatenate: bool
) -> None:
    """Refuses what cannot be meant."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    for what, number in (("seed", seeds), ("job", jobs)):
        if number < 1:
            raise UserError(f"a comparison needs at least one {what}, not {number}")
    if tune < 0:
        raise UserError(f"the number of trials must be 0 or more, not {tune}")
    if tune and settings.get("epochs") == 0:
        raise UserError("tuning with epochs=0 would choose among untrained models; use epochs=1 or more")
    if protocol == "paper" and (tune or concatenate):
        what = "tune" if tune else "concatenate"
        raise UserError(f"{what} needs validation classes, which protocol 'paper' does not have; use protocol=\"fair\"")
    if concatenate and seeds == 1:
        raise UserError("concatenate joins the models of several seeds; use seeds=2 or more")
    for fixed in NOT_FREE:
        if fixed in settings:
            raise UserError(f"{fixed} is set by the protocol and the number of seeds; leave it out")
    if "source" in settings:
        raise UserError("data is given twice; leave out source")


def rows_of(
    methods: Methods, data: str, settings: Mapping[str, Any], protocol: str, objects: Objects
) -> dict[str, Row]:
    """By name, what each row is trained with: the settings as far as its method has them."""
    named = methods_by_name(methods, settings)
    kinds = {name: method if isinstance(method, str) else method.name for name, method in named.items()}
    shared = {"patience": 0, **settings, **PROTOCOLS[protocol]}
    for setting, value in settings.items():  # each must be a setting of at least one of the methods
        if not any(knows(kind, setting) for kind in kinds.values()):
            by_section(next(iter(kinds.values())), {setting: value})  # says which settings there are
    rows: dict[str, Row] = {}
    for name, method in named.items():
        own = {} if isinstance(method, str) else method.settings()
        known = {setting: value for setting, value in shared.items() if knows(kinds[name], setting)}
        loss = Objects(method=method) if isinstance(method, LossModule) else Objects()
        rows[name] = Row(make_settings(data, kinds[name], known | own), {*settings, *own}, objects | loss)
    return rows


def methods_by_name(methods: Methods, settings: Mapping[str, Any] | None = None) -> dict[str, str | Method]:
    """The methods in the order given, by the names of their rows; a loss module is named after its class.

    >>> methods_by_name(["rank", nn.TripletMarginLoss(), nn.TripletMarginLoss()]).keys()
    dict_keys(['rank', 'TripletMarginLoss', 'TripletMarginLoss_2'])
    """
    found: dict[str, str | Method] = {}
    for each in listed(methods):
        if not isinstance(each, str | Method | nn.Module):
            raise UserError(
                f"a method is a name, an object such as Magnet(alpha=2.0) or a loss module, not {kind_of(each)}"
            )
        method = LossModule.of(each, **batches_of(settings or {})) if isinstance(each, nn.Module) else each
        if isinstance(method, LossModule) and hasattr(method, "loss"):
            stem = type(method.loss).__name__
            found[next(name for name in _numbered(stem) if name not in found)] = method
            continue
        kind = method_class(method if isinstance(method, str) else method.name)
        if not kind.listed:
            raise UserError(
                f"'{kind.name}' stands for your own loss module; give the module itself: "
                "nearkin.compare(data, [MyLoss()])"
            )
        if isinstance(method, Method) and type(method) is not kind:
            raise UserError(
                f"{type(method).__name__} is not the registered method '{kind.name}'; give it its own name and "
                "register it with the decorator nearkin.methods.register"
            )
        if found.setdefault(kind.name, method) != method:
            raise UserError(f"'{kind.name}' is given twice with different settings; compare it in two folders")
    if not found:
        raise UserError("no method given; name at least one")
    return found


def listed(methods: Methods) -> Sequence[str | Method | nn.Module]:
    """Methods as a list.

    >>> listed("rank, triplet")
    ['rank', 'triplet']
    """
    if isinstance(methods, Method | nn.Module):
        return [methods]
    given = methods.split(",") if isinstance(methods, str) else methods
    names = [each.strip() if isinstance(each, str) else each for each in given]
    return [method.name for method in known_methods() if method.in_all] if names == ["all"] else names


def _numbered(stem: str) -> Iterable[str]:
    return chain([stem], (f"{stem}_{number}" for number in count(2)))


def check_objects(rows: Mapping[str, Row], jobs: int) -> None:
    """Refuses objects that cannot be compared; losses and the backbone are tried, so that none fails on the way."""
    if jobs > 1 and any(row.objects for row in rows.values()):
        raise UserError(
            "data, backbones and losses in memory cannot be sent to other processes, so their runs go one after the "
            "other in this process; use jobs=1"
        )
    first = next(iter(rows.values()))
    losses = [row for row in rows.values() if "method" in row.objects]
    for row in losses or ([first] if "backbone" in first.objects else []):
        objects, settings, train = copied(row.objects), row.resolved(), row.splits().train
        spec = build_model(settings, train, 1, objects.get("backbone")).spec
        if "method" in objects:
            objects["method"].check(train.dense_labels, spec.dim, settings.training.batch_size, spec.normalize)


def check_same_settings(out: Path, protocol: str, rows: Mapping[str, Row], tune: int) -> dict[str, Any]:
    """Refuses to mix runs of different settings in one folder; more methods, seeds and trials are welcome.

    Trials may be added to trials, but not below runs whose settings fewer trials chose.

    Returns:
        By row, what to write into the folder's ``settings.json``.
    """
    file = out / "settings.json"
    now = {name: {"protocol": protocol, **_described(row)} for name, row in rows.items()}
    before: dict[str, Any] = read_json(file, dict) if file.is_file() else {}
    for name in rows:
        then = dict(before.get(name, {}))
        other_trials = then.pop("trials", 0) != tune
        has_runs = any(run.config_file.is_file() for run in runs_of(out, name))
        if (has_runs and other_trials) or ((has_runs or trials_of(out, name)) and then != now[name]):
            raise UserError(
                f"{out} holds runs of {name} with other settings; repeat those, or choose another folder with out=..."
            )
    return before | {name: tables | {"trials": tune} for name, tables in now.items()}


def _described(row: Row) -> dict[str, Any]:
    """All settings of a row, and of its objects what tells them from others; data are told by the runs' digests."""
    tables: dict[str, Any] = full_tables(row.settings)
    if "dataset" in row.objects:
        tables["data"]["source"] = ""
    modules = backbone_digest(row)
    if isinstance(method := row.objects.get("method"), LossModule):
        modules["loss"] = module_digest(method.loss, weights=False)  # they are learned
    return tables | ({"modules": modules} if modules else {})


def backbone_digest(row: Row) -> dict[str, str]:
    """What tells a backbone of the user's own from others: its weights too, where training starts from them."""
    backbone, model = row.objects.get("backbone"), row.settings.model
    starts_from_them = model.weights in ("", "own") and not model.init
    return {} if backbone is None else {"backbone": module_digest(backbone, weights=starts_from_them)}


def check_same_data(out: Path, rows: Mapping[str, Row], seeds: int) -> None:
    """Refuses data that have changed since a run that is there already, or that leave nothing to test on."""
    first = next(iter(rows.values()))
    for seed in range(seeds):
        splits = first.splits(seed)
        if splits.test is None:
            raise UserError(f"{first.settings.data.source} has no test split to compare on; choose another split")
        for name in rows:
            for run in [Run(out / f"{name}-{seed}"), *(trials_of(out, name) if seed == 0 else [])]:
                run.check_data(splits.digest())


def runs_of(out: Path, method: str) -> list[Run]:
    """The runs that a folder holds, of whatever seed."""
    return [Run(folder) for folder in out.glob(f"{method}-*") if folder.name.removeprefix(f"{method}-").isdecimal()]


def trials_of(out: Path, method: str) -> list[Run]:
    """The trials that a folder holds."""
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
    """What to type to repeat a comparison: a command, or a call where some of it was given as objects.

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
    """A value as Python writes it; of a module, its class."""
    if isinstance(value, LossModule):
        return f"LossModule.of({_code(value.loss)}, per_class={value.per_class})"
    return f"{type(value).__name__}(...)" if isinstance(value, nn.Module) else repr(value)


def set_options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of a command.

    >>> set_options({"epochs": 5, "freeze_backbone": True})
    ['--set', 'epochs=5', '--set', 'freeze_backbone=true']
    """
    texts = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items())
    return [word for text in texts for word in ("--set", text)]
