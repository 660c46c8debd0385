"""The Python API: one function per command; commands on a gallery are methods of `Gallery`.

These functions convert what users pass (paths, names, their own objects) to what the packages take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from nearkin.data import Dataset, as_dataset, without_unreadable
from nearkin.data.images import Unreadable
from nearkin.data.items import ImageFiles, Items
from nearkin.data.sources import load_labelled_or_flat
from nearkin.data.splits import BY_CLASSES
from nearkin.errors import UserError, unknown_name
from nearkin.evaluation import EvaluationResult, confidence_intervals, diagnostics
from nearkin.evaluation import evaluate as evaluate_space
from nearkin.evaluation.evaluate import as_space
from nearkin.files import atomic_path, write_json
from nearkin.messages import show_messages
from nearkin.methods import Method, method_class
from nearkin.models import Embedder, embed_dataset, load_model
from nearkin.models.model import default_device
from nearkin.models.pretrained import network_name
from nearkin.models.saved import read_spec
from nearkin.search import Gallery as SearchableGallery
from nearkin.space import Space
from nearkin.training import DataSettings, Run, Settings, loop
from nearkin.training.fit_all import fit_all as train_on_all
from nearkin.training.objects import Callback, batches_of, copied, kind_of, take_objects
from nearkin.training.prepare import absolute, load_data, load_splits, report_unreadable
from nearkin.training.run import NewRun
from nearkin.training.scoring import concentrations, score_space, split_to_measure
from nearkin.training.settings import by_section, knows, make_settings

if TYPE_CHECKING:
    from nearkin.experiments.demo import DemoResult
    from nearkin.models.onnx import Exported

log = logging.getLogger("nearkin")
SPLITS = ("train", "validation", "test", "all")


def train(
    data: Any = None,
    method: str | Method | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    recipe: str | None = None,
    fit_all: bool = False,
    *,
    loss: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """Trains an embedding model and returns its run: the folder with the model, its scores and its curves.

    Args:
        data: a folder with one subfolder per class, a ``.csv`` or ``.npz`` file, or a dataset name; arrays ``(X, y)``;
            a torch or Hugging Face dataset.
        method: a name (`nearkin methods` lists them) or an object such as ``nearkin.methods.Magnet(alpha=2.0)``;
            "rank" unless a config or recipe says otherwise.
        out: the run folder; by default a new one in ``runs/``.
        config: repeat a run from its ``config.toml``; ``data`` and ``settings`` override it. Pass your own loss or
            backbone again.
        recipe: published or tuned settings by name; `nearkin recipes` lists them.
        fit_all: afterwards, train again on all classes for the best number of epochs, in a folder next to the first,
            and return that run.
        loss: a loss, instead of a method: any module with ``loss(embeddings, labels) -> scalar``.
        callbacks: called after every epoch as ``callback(run, metrics)``.
        settings: any setting of a run's ``config.toml`` by name: ``epochs=5, dim=64, alpha=2.0``. ``backbone`` may be a
            module: it counts as pretrained unless ``weights="none"``, and takes images of 224 pixels unless
            ``image_size`` is given. ``init`` may be a run.

    A summary of the data and one line per epoch go to standard error, unless the program has set up logging itself.

    >>> run = train("glyphs", epochs=5, dim=64)  # doctest: +SKIP
    >>> run.model.encode("cat.jpg").shape  # doctest: +SKIP
    (64,)
    """
    show_messages()
    if loss is not None and config is not None:  # keep the batches of the earlier run
        settings = batches_of(Settings.read(config).method_settings) | settings
    settings, objects = take_objects(data, settings, method, loss, callbacks)
    dataset = objects.get("dataset")
    source = data if dataset is None else dataset.source
    chosen = _settings(source, objects.get("method", method), config, recipe, settings)
    name = chosen.data.source if dataset is None else dataset.name
    originals = copied(objects) if fit_all else objects
    run = loop.train(chosen, out or NewRun(default_folder(name, chosen.method)), **objects)
    log.info(run.scores["verdict"])
    return train_on_all(run, **originals) if fit_all else run


def resume(
    run: str | Path | Run,
    epochs: int | None = None,
    *,
    data: Any = None,
    method: Method | None = None,
    loss: nn.Module | None = None,
    backbone: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continues a run from its last checkpoint. It ends with the same weights as if it had never stopped.

    Args:
        run: a run or its folder.
        epochs: new total number of epochs; None: as before.
        data, method, loss, backbone: the object that the run was started with, if it was a Python object. A `Run` that
            was trained in this process has its data and its backbone.
        callbacks: called after every epoch as ``callback(run, metrics)``.

    >>> resume("runs/photos-rank", epochs=20)  # doctest: +SKIP
    """
    show_messages()
    data = _data_of(run) if data is None else data
    backbone = _module_of(run) if backbone is None else backbone
    given: dict[str, Any] = {} if backbone is None else {"backbone": backbone}
    if loss is not None:  # keep the batches of the run
        given |= batches_of(Run.open(_folder(run)).settings().method_settings)
    _, objects = take_objects(data, given, method, loss, callbacks)
    if isinstance(data, str | Path):
        objects["dataset"] = as_dataset(data)
    finished = loop.resume(_folder(run), epochs=epochs, **objects)
    log.info(finished.scores["verdict"])
    return finished


def load(model: str | Path | Run, weights: str | Path | None = None, backbone: nn.Module | None = None) -> Embedder:
    """Loads a model from a run, a ``model/`` folder, or a pretrained network by name, to ``encode`` items with it.

    Args:
        model: a folder, ``timm:NAME``, ``torchvision:googlenet``, or a timm name if there is no such folder.
        weights: a weights file for a pretrained network, instead of the ImageNet weights, which are downloaded.
        backbone: your own module, if the model was trained with one; the weights are loaded into it.

    >>> load("timm:resnet50").encode(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
    (2, 2048)
    """
    backbone = deepcopy(_module_of(model)) if backbone is None else backbone
    return load_model(_folder(model), weights, backbone)


def evaluate(
    model: str | Path | Run | Embedder | Space | Tensor | npt.ArrayLike,
    labels: Tensor | npt.ArrayLike | None = None,
    *,
    data: Any = None,
    weights: str | Path | None = None,
    split: str | None = None,
    recall_at: int | Sequence[int] = (1, 2, 4, 8),
    root: str | Path | None = None,
    check_counts: bool = True,
    clustering: str | None = "kmeans",
    attributes: bool = False,
    diagnose: bool = False,
    views: int = 1,
    out: str | Path | None = None,
    is_query: Tensor | npt.ArrayLike | None = None,
    is_gallery: Tensor | npt.ArrayLike | None = None,
    backbone: nn.Module | None = None,
) -> EvaluationResult:
    """Evaluates embeddings and their labels, or a model on data. The result prints as a table.

    Args:
        model: embeddings (items, dim) or a `Space`; or a run, an embedder, a model folder, or a network by name.
        labels: (items,) labels of the embeddings, numbers or strings.
        data: data to evaluate a model on; None: the run's own data. If a saved run was trained on an object, pass it
            again.
        weights: a weights file for a pretrained network, instead of the ImageNet weights.
        split: "train", "validation", "test" or "all"; None: "test" for the run's own data, else "all".
        recall_at: values of K for Recall@K, one or several.
        root: folder that contains the benchmark datasets.
        check_counts: raise if a benchmark does not have the published numbers of images.
        clustering: clustering algorithm, "kmeans" or "spectral"; None: no clustering.
        attributes: also measure how often neighbours share attributes.
        diagnose: also report distances and how evenly the dimensions are used.
        views: augmented views to average per image; a model without a run uses crops and flips.
        out: JSON file for the scores.
        is_query: (items,) mask: which embeddings are queries; None: all.
        is_gallery: (items,) mask: which embeddings are searched; None: all.
        backbone: your own module, if the model was trained with one.

    >>> evaluate([[0.0], [1.0], [5.0], [6.0]], ["a", "a", "b", "b"], recall_at=1).scores["recall@1"]
    1.0
    >>> print(evaluate("runs/photos-rank"))  # doctest: +SKIP
    """
    if isinstance(model, str | Path | Run | Embedder):
        if labels is not None or is_query is not None or is_gallery is not None:
            raise UserError("labels and masks belong to embeddings; to evaluate a model, pass data=...")
        target = _target(model, data, split, root, check_counts)
        dataset, run = target.dataset, target.run
        embedder = _embedder(model, weights, backbone)
        if attributes and not dataset.attributes:
            raise UserError(f"{dataset.name} has no attributes; add them as columns of a .csv or .npz file")
        embedded = partial(embed_dataset, embedder.model, views=views, augment=_augmentation(run, views))
        space, known = embedded(dataset), None if target.trained_on is None else embedded(target.trained_on)
        result = score_space(space, _method(run) if run else None, known, recall_at, clustering, dataset.protocol)
        result = replace(result, split=target.split, attributes=concentrations(space, dataset) if attributes else {})
        # Training evaluated the backbone in the same way before its first step.
        if run and target.unchanged and target.split == "test" and views == 1 and clustering == "kmeans":
            alone = run.scores.get("backbone", {}) if run.scores_file.is_file() else {}
            result = replace(result, backbone={name: value for name, value in alone.items() if name in result.scores})
        try:
            result = replace(result, intervals=confidence_intervals(result, space, over="classes"))
        except UserError as error:  # queries of a single class have scores but no interval
            log.warning("no confidence intervals: %s", error)
    else:
        if model is None or isinstance(model, nn.Module):
            kind = type(model).__name__
            raise UserError(f"a {kind} cannot be evaluated; pass a run, an Embedder, or embeddings and their labels")
        if data is not None or attributes or views != 1 or split is not None:
            raise UserError("data, split, attributes and views apply to a model; leave them out for embeddings")
        space = as_space(model, labels, is_query, is_gallery)
        result = evaluate_space(space, recall_at=recall_at, clustering=clustering)
    if diagnose:
        found = diagnostics(space)
        result.scores.update(found.scores)
        result = replace(result, diagnostics=found)
    if out is not None:
        write_json(Path(out), result.to_dict())
    return result


def embed(
    model: str | Path | Run | Embedder,
    data: Any,
    out: str | Path = "vectors.npz",
    weights: str | Path | None = None,
    root: str | Path | None = None,
    unreadable: str = "skip",
    check_counts: bool = True,
    backbone: nn.Module | None = None,
) -> npt.NDArray[np.float32]:
    """Embeds a dataset and saves vectors, labels and names to an ``.npz`` file; returns the vectors (n, dim).

    Args:
        model: a run, an embedder, a model folder, or a network by name.
        data: anything `train` takes, or a folder of images without classes.
        out: file to write (``.npz``).
        weights: a weights file for a pretrained network, instead of the ImageNet weights.
        root: folder that contains the benchmark datasets.
        unreadable: what to do with images that cannot be decoded: "skip" or "stop".
        check_counts: raise if a benchmark does not have the published numbers of images.
        backbone: your own module, if the model was trained with one.
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise UserError(f'vectors are saved as .npz, not {out.name}; use out="{out.with_suffix(".npz")}"')
    embedder = _embedder(model, weights, backbone)
    dataset, bad = without_unreadable(load_labelled_or_flat(data, root, check_counts), unreadable)
    report_unreadable(bad)
    vectors: npt.NDArray[np.float32] = embed_dataset(embedder.model, dataset).embeddings.cpu().numpy()
    labels = np.array([dataset.classes[label] for label in dataset.labels])
    with atomic_path(out) as partial:
        np.savez(partial, vectors=vectors, labels=labels, names=np.array(dataset.items.names()))
    return vectors


def export(
    model: str | Path | Run | Embedder,
    out: str | Path | None = None,
    weights: str | Path | None = None,
    backbone: nn.Module | None = None,
) -> Exported:
    """Exports a model to ONNX. The file is written only if its embeddings match those of PyTorch.

    Args:
        model: a run, an embedder, a model folder, or a network by name.
        out: file to write; None: the model's name and ``.onnx``.
        weights: a weights file for a pretrained network, instead of the ImageNet weights.
        backbone: your own module, if the model was trained with one.
    """
    embedder = _embedder(model, weights, backbone)
    if isinstance(model, Embedder):
        return embedder.export(out or "model.onnx")
    name = Path(_folder(model)).resolve().name.rpartition(":")[2]  # timm:resnet50 is resnet50
    return embedder.export(out or f"{name}.onnx", _sample_items(model))


def report(
    run: str | Path | Run,
    out: str | Path | None = None,
    split: str = "test",
    *,
    data: Any = None,
    backbone: nn.Module | None = None,
) -> Path:
    """Writes an HTML report about a run: scores, learning curves, a map, neighbours, confusions and settings.

    Args:
        run: a run or its folder.
        out: HTML file; None: ``report.html`` in the run folder.
        split: split to show: "train", "validation" or "test".
        data, backbone: the object that the run was trained with, if it was a Python object.

    >>> report("runs/photos-rank")  # doctest: +SKIP
    PosixPath('runs/photos-rank/report.html')
    """
    from nearkin.experiments.run_report import write_report

    data = _data_of(run) if data is None else data
    embedder = None if backbone is None and _module_of(run) is None else _embedder(run, backbone=backbone)
    return write_report(_folder(run), out, split, dataset=None if data is None else as_dataset(data), embedder=embedder)


def demo(out: str | Path = "runs/demo", epochs: int = 20, seed: int = 0, data: str = "glyphs") -> DemoResult:
    """Trains on built-in images of characters and evaluates on unseen classes; saves the model and two figures.

    The result prints as a table; its ``run`` has the model.

    Args:
        out: output folder; an earlier demo there is replaced.
        epochs: number of epochs.
        seed: random seed.
        data: glyphs in another size, such as ``glyphs:classes=40,per_class=10``.
    """
    from nearkin.experiments.demo import run_demo

    show_messages()
    return run_demo(Path(out), data, epochs, seed)


# nearkin.search cannot import the web page, which is built on it.
class Gallery(SearchableGallery):
    """Images, their embeddings, and the model that embedded them: add, search, match, remove and serve.

    Attributes:
        path: the gallery's folder.
        model: the `Embedder`.
        result: result of the last `add`.

    >>> with Gallery.open("photos.index") as gallery:  # doctest: +SKIP
    ...     print(gallery.search("query.jpg", k=2))
    query.jpg
    rank  distance  label  path
       1    0.3127  rose   /photos/rose/1.jpg
       2    0.3308  rose   /photos/rose/8.jpg
    """

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        open_browser: bool = False,
        allow_host: Sequence[str] | None = None,
        token: str | None = None,
    ) -> None:
        """Serves a web page that searches the gallery by image, until Ctrl-C; see `nearkin.serve.serve`."""
        from nearkin.serve import serve

        serve(self, host, port, open_browser, allow_host, token)


def index(
    model: str | Path | Embedder | Run,
    data: Any,
    out: str | Path = "gallery.index",
    weights: str | Path | None = None,
    store: str = "",
    root: str | Path | None = None,
    check_counts: bool = True,
    prune: bool = False,
    backbone: nn.Module | None = None,
) -> Gallery:
    """Indexes images for search, or updates a gallery; returns the open gallery, with its ``result``.

    Args:
        model: a run or its folder, a model, or a pretrained network by name; the gallery keeps a copy of it.
        data: a folder of images, with or without class subfolders; a ``.csv`` file; a dataset or its name; a list of
            files.
        out: gallery to create or update.
        weights: a weights file for a pretrained network, instead of the ImageNet weights, which are downloaded.
        store: where to store the vectors: empty for the gallery's folder, or ``milvus://host:19530/collection``.
        root: folder that contains the benchmark datasets.
        check_counts: raise if a benchmark does not have the published numbers of images.
        prune: whether to remove items whose files in this folder are gone.
        backbone: your own module, if the model was trained with one; `Gallery.open` takes it too.

    >>> gallery = index("runs/photos", "photos/", "photos.index")  # doctest: +SKIP
    >>> print(gallery.search("query.jpg", k=3))  # doctest: +SKIP
    """
    if backbone is not None or _module_of(model) is not None:
        model, weights = _embedder(model, weights, backbone), None
    model = model if isinstance(model, Embedder) else _folder(model)
    return Gallery.index(model, data, out, weights, store, root, check_counts, prune)


def default_folder(data: str, method: str) -> Path:
    """Returns the default folder of a run; `NewRun` appends a number if it is taken.

    >>> default_folder("glyphs:classes=40", "rank")
    PosixPath('runs/glyphs-rank')
    """
    stem = Path(data.partition(":")[0]).stem or "data"
    return Path("runs") / f"{stem}-{method}"


def _settings(
    source: Any,
    method: str | Method | None,
    config: str | Path | None,
    recipe: str | None,
    settings: dict[str, Any],
) -> Settings:
    if source is not None and "source" in settings:
        raise UserError("data is given twice; leave out source")
    if config is None and recipe is None:
        if source is None:
            raise UserError("no data given; pass data, a recipe or a config")
        if not isinstance(method, Method):
            _check_names(method or "rank", settings)
            return make_settings(source, method or "rank", settings)
        _check_names(type(method), settings)
        tables = by_section(type(method), {"source": str(source), **settings})
        current = method.settings()
        if own := ", ".join(name for name, value in tables.get("method", {}).items() if current[name] != value):
            raise UserError(f"{own} must be passed to the method itself: {type(method).__name__}({own}=...)")
        return replace(Settings.from_tables(tables), method=method.name, method_settings=method.settings())
    passed_again = config is not None and isinstance(method, Method)  # the object that the config describes
    if (method is not None and not passed_again) or (config is not None and recipe is not None):
        raise UserError("a config or a recipe sets the method; pass only one of config, recipe and method")
    from nearkin.experiments.recipes import read_recipe

    chosen = Settings.read(config) if config is not None else read_recipe(recipe or "")
    changes = settings if source is None else settings | {"source": str(source)}
    chosen = chosen.changed(**by_section(type(method) if isinstance(method, Method) else chosen.method, changes))
    if isinstance(method, Method):
        loop.check_same_method(method, chosen)
    return chosen


def _check_names(method: str | type[Method], settings: dict[str, Any]) -> None:
    """Raises for a misspelt argument of `train` itself; `make_settings` raises for a misspelt setting."""
    if isinstance(method, str):
        method_class(method)  # report an unknown method first
    own = signature(train).parameters.keys() - {"settings"}
    for name in settings:
        if not knows(method, name) and get_close_matches(name, own, n=1):
            raise unknown_name("keyword", name, own)


def _folder(run: str | Path | Run) -> str | Path:
    if not isinstance(run, str | Path | Run):
        raise UserError(f"pass a run, a folder or a name, not {kind_of(run)}")
    return run.folder if isinstance(run, Run) else run


def _data_of(run: object) -> Dataset | None:
    """The object that a run of this process was trained on; None if it was no object."""
    return run.dataset if isinstance(run, Run) else None


def _module_of(run: object) -> nn.Module | None:
    """The user's own module that a run of this process was trained with, if any."""
    return run.backbone if isinstance(run, Run) else None


def _embedder(
    model: str | Path | Run | Embedder, weights: str | Path | None = None, backbone: nn.Module | None = None
) -> Embedder:
    """Returns an embedder unchanged; loads any other model, onto the GPU if there is one."""
    if isinstance(model, Embedder) and backbone is not None:
        raise UserError("an Embedder already has its backbone; leave out backbone")
    return model if isinstance(model, Embedder) else load(model, weights, backbone).to(default_device())


@dataclass(frozen=True)
class _Target:
    """The data that a model is evaluated on.

    Attributes:
        dataset: the items.
        split: name of their split.
        run: the model's run; None if it has none.
        trained_on: the training split, if it has other items of the same classes.
        unchanged: whether they are the run's own data, unchanged since it started.
    """

    dataset: Dataset
    split: str
    run: Run | None
    trained_on: Dataset | None
    unchanged: bool


def _target(
    model: str | Path | Run | Embedder, data: Any, split: str | None, root: str | Path | None, check_counts: bool
) -> _Target:
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    run = None if isinstance(model, Embedder) else _run_of(_folder(model))
    given, data = data, _data_of(model) if data is None else data
    if run is None and data is None:
        if not isinstance(model, Embedder) and network_name(_folder(model)) is None:
            read_spec(_folder(model))  # raises if there is no model
        raise UserError("a model without a run has no data of its own; pass data=...")
    dataset = None if data is None or isinstance(data, str | Path) else as_dataset(data)
    source = str(data) if dataset is None else dataset.source
    settings = DataSettings(source=source, check_counts=check_counts, validation=0.0)
    own = data is None or (run is not None and absolute(settings.source) == run.settings().data.source)
    split = split or ("test" if given is None or (run is not None and own and _unchanged(run, dataset)) else "all")
    if run is not None:
        trained = run.settings().data
        # Split other data as the run's own data were split: they may be a copy of them.
        same_split = replace(settings, split=trained.split if trained.split in BY_CLASSES else "")
        settings = trained if own else replace(same_split, split_seed=trained.split_seed)
    if root is not None:
        settings = replace(settings, root=str(root))
    name = split
    if split == "all":
        settings, name = replace(settings, split="all", validation=0.0), "train"
    splits = load_splits(settings, run.settings().training.seed if run else 0, dataset)
    unchanged = run is not None and own and run.same_data(splits.digest())
    if run is not None and own and not unchanged and split != "all":
        log.warning("the data have changed since this run started: the model may have been trained on test classes")
    if getattr(splits, name) is None:
        raise UserError(f"{settings.source} has no {split} split; choose another split")
    measured, trained_on = split_to_measure(splits, name)
    return _Target(measured, split, run, trained_on if own else None, unchanged)


def _unchanged(run: Run, dataset: Dataset | None) -> bool:
    """Whether the run's data, or the dataset passed instead, are unchanged since it started."""
    settings = run.settings()
    return run.same_data(load_splits(settings.data, settings.training.seed, dataset).digest())


def _run_of(folder: str | Path) -> Run | None:
    """Returns the run in a folder; None for a model without its run, or a network by name."""
    run = Run(folder)
    if not run.folder.exists() and network_name(run.folder) is None:
        raise UserError(f"folder {run.folder} does not exist; pass a run folder or a model folder")
    return run if run.config_file.is_file() else None


def _augmentation(run: Run | None, views: int) -> str:
    if views == 1:
        return "none"
    augment = run.settings().data.augment if run else "crop-flip"
    if views > 1 and augment == "none":
        raise UserError("this run was trained without augmentation, so all views would be the same; leave out views")
    return augment


def _method(run: Run) -> Method | None:
    """Returns the run's method, whose read-out adds scores; None if it is unknown here."""
    try:
        return run.method()
    except UserError as error:  # for example, a method that another program registered
        log.warning("skipped the scores of the method's own read-out: %s", error)
        return None


def _sample_items(model: str | Path | Run, most: int = 10) -> Items | None:
    """Returns a few random readable items of the run's own data; None if there are none.

    Reads only as many as needed: checking all of them, as training does, would take minutes.
    """
    run = model if isinstance(model, Run) else Run(model)
    if not run.config_file.is_file():
        return None
    try:
        items = (run.dataset or load_data(run.settings().data)).items
    except (UserError, OSError) as error:
        log.warning("compared on synthetic inputs only: %s", error)
        return None
    order = np.random.default_rng(0).permutation(len(items)).tolist()
    readable = (n for n in order if not (isinstance(items, ImageFiles) and isinstance(items.image(n), Unreadable)))
    chosen = list(islice(readable, most))
    if not chosen:
        log.warning("compared on synthetic inputs only: none of the run's %d items can be read", len(items))
        return None
    return items.take(np.array(chosen))
