"""Metric learning on feature vectors as a scikit-learn estimator, for pipelines, grid searches and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from nearkin.data import from_arrays
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.messages import show_messages
from nearkin.methods import method_class
from nearkin.progress import quiet
from nearkin.space import Space
from nearkin.training import Settings, train
from nearkin.training.run import MemoryRun

Array = npt.NDArray[np.float32]


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns to map feature vectors to embeddings in which items of the same class are close.

    Features are read as float32; the model standardises them.

    Args:
        method: name of the method; `nearkin methods` lists them.
        dim: dimension of the embedding.
        epochs: number of passes over the data.
        batch_size: items per batch; 0: the method's default, or as many as the data can fill.
        learning_rate: initial learning rate; it decays to 0 along a cosine.
        backbone: "mlp" (two hidden layers) or "linear".
        method_settings: settings of the method by name, for example {"margin": 0.3} for "triplet".
        random_state: random seed; an integer makes results reproducible (on a CPU), None gives others at each fit.
        device: device to train on: "auto", "cpu" or "cuda". The fitted model is on the CPU.
        verbose: whether to show progress.

    Attributes:
        embedder_: the fitted model; ``embedder_.save(folder)`` saves it for `nearkin.load`.
        n_features_in_: number of features seen during fit.
        feature_names_in_: names of the features seen during fit, if they have names.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> learner = MetricLearner(dim=8, epochs=5, random_state=0).fit(X[::2], y[::2])
    >>> learner.transform(X[1::2]).shape
    (75, 8)
    >>> learner.score(X[1::2], y[1::2]) > 0.9
    True
    """

    def __init__(
        self,
        method: str = "rank",
        dim: int = 32,
        epochs: int = 20,
        batch_size: int = 0,
        learning_rate: float = 1e-3,
        backbone: str = "mlp",
        method_settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.dim = dim
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.backbone = backbone
        self.method_settings = method_settings
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:  # noqa: N803
        """Learns from vectors X (n, features) and their classes y (n,), numbers or strings."""
        if self.verbose:
            show_messages()
        vectors, classes = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        check_classification_targets(classes)
        labels = np.unique(classes, return_inverse=True)[1]
        if not labels.any():
            raise UserError("y has only one class; pass vectors of at least two classes")
        seed = int(check_random_state(self.random_state).randint(2**31))
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices), self._bars():
            dataset = from_arrays(vectors, labels)
            self.embedder_ = train(self._settings(labels, seed), MemoryRun(), dataset=dataset).model
        self._n_features_out = self.embedder_.model.spec.dim
        return self

    def transform(self, X: npt.ArrayLike) -> Array:  # noqa: N803
        """Embeds vectors X (n, features); returns (n, dim) float32, of unit length if the method normalises them."""
        check_is_fitted(self)
        vectors = validate_data(self, X, dtype=np.float32, reset=False)
        with self._bars():
            return self.embedder_.encode(vectors)

    def score(self, X: npt.ArrayLike, y: npt.ArrayLike) -> float:  # noqa: N803
        """Returns leave-one-out Recall@1: the fraction of items in X whose nearest *other* item has the same class.

        Items that are the only ones of their class in X are searched but not scored. The training items are not used:
        X may contain classes not seen during fit.
        """
        space = Space.of(self.transform(X), column_or_1d(y))
        with self._bars():
            return evaluate(space, recall_at=[1], clustering=None).scores["recall@1"]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _settings(self, labels: npt.NDArray[np.int64], seed: int) -> Settings:
        tables: dict[str, dict[str, Any]] = {
            "data": {"source": "arrays", "split": "all", "validation": 0.0},
            "model": {"backbone": self.backbone, "dim": self.dim, "head_init": "random"},
            "method": {**self._per_class(labels), **(self.method_settings or {}), "name": self.method},
            "training": {
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "device": self.device,
                "seed": seed,
                "evaluate_every": 0,
                "warmup_steps": 0,
                "logger": "none",
            },
        }
        return Settings.from_tables({section: _plain(table) for section, table in tables.items()}, "MetricLearner")

    def _bars(self) -> AbstractContextManager[None]:
        return nullcontext() if self.verbose else quiet()

    def _per_class(self, labels: npt.NDArray[np.int64]) -> dict[str, int]:
        """Items per class in a batch: the method's default, or fewer if small data need it to fit two classes."""
        default = getattr(method_class(self.method), "per_class", None)
        if default is None:
            return {}
        if self.batch_size in (1, 2, 3):  # too few for two classes of two items
            raise UserError(f"batch_size must be an integer >= 4, or 0 for the default, got {self.batch_size!r}")
        largest = int(np.bincount(labels).max())
        batch: Any = self.batch_size or len(labels)
        if not isinstance(batch, Integral):
            return {}  # the settings refuse it
        most = min(largest, len(labels) - largest, int(batch) // 2)
        return {"per_class": min(default, max(3, most))}  # the smallest batch has 4 items


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Converts NumPy numbers, which parameter grids and distributions give, to Python's."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in table.items()}
