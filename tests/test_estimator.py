import pickle
from contextlib import nullcontext
from functools import cache

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import nearkin
from nearkin.errors import UserError
from nearkin.estimator import MetricLearner
from nearkin.methods import Method, known_methods
from nearkin.training import loop


def quick(**settings):
    return MetricLearner(**{"dim": 4, "epochs": 2, "random_state": 0, "device": "cpu", **settings})


def noisy_classes(n=120, classes=4, seed=0):
    """Vectors (n, 6): two features separate the classes, the others are noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = np.pad(np.random.default_rng(99).normal(size=(classes, 2)), ((0, 0), (0, 4)))
    return centres[y] + rng.normal(size=(n, 6)) * [0.2, 0.2, 1, 1, 1, 1], y


@cache
def fitted():
    return quick().fit(*noisy_classes())


def nearest_other_has_the_class(points, y):
    distances = np.linalg.norm(points[:, None].astype(float) - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    return y[distances.argmin(1)] == y


@parametrize_with_checks([MetricLearner(dim=2, epochs=1)])
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def test_the_embedding_separates_unseen_items_better_than_the_features():
    before, y = noisy_classes(seed=1)
    learner = quick(epochs=10).fit(*noisy_classes(seed=0))
    assert learner.score(before, y) > nearest_other_has_the_class(before, y).mean() + 0.1


def test_score_is_leave_one_out_recall_at_1_without_single_items():
    x, y = noisy_classes(seed=1)
    names = np.array(["alone", "b", "c", "d"])[y]
    keep = (y > 0) | (np.arange(len(y)) == 0)
    x, names = x[keep], names[keep]
    expected = nearest_other_has_the_class(fitted().transform(x), names)[names != "alone"].mean()
    assert fitted().score(x, names) == pytest.approx(expected)
    assert fitted().score(x, names.tolist()) == pytest.approx(expected)


@pytest.mark.parametrize("method", [method.name for method in known_methods()])
def test_every_method_fits_labels_of_any_kind(method):
    x, y = noisy_classes()
    numbers = quick(method=method, dim=8, epochs=1).fit(x, y)
    words = quick(method=method, dim=8, epochs=1).fit(x, np.array(["a", "b", "x", "y"], dtype=object)[y])
    gaps = quick(method=method, dim=8, epochs=1).fit(x, np.array([-7, 0, 3, 1000])[y].tolist())
    for other in (words, gaps):
        np.testing.assert_array_equal(numbers.transform(x), other.transform(x))
    lengths = np.linalg.norm(numbers.transform(x), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == (method != "magnet")


def test_the_same_random_state_gives_the_same_embedding_and_global_state_is_unchanged():
    x, y = noisy_classes()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = quick().fit(x, y).transform(x)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(again, fitted().transform(x))
    assert not np.allclose(quick(random_state=1).fit(x, y).transform(x), again)
    generator = np.random.RandomState(0)
    first, second = (quick(random_state=generator).fit(x, y).transform(x) for _ in range(2))
    assert not np.allclose(first, second)


def test_precision_of_the_input_does_not_matter():
    x, y = noisy_classes()
    x = x.astype(np.float32)
    single, double = quick().fit(x, y), quick().fit(x.astype(float), y)
    assert single.transform(x).dtype == double.transform(x.astype(float)).dtype == np.float32
    np.testing.assert_array_equal(single.transform(x), double.transform(x.astype(float)))


def test_a_fitted_estimator_can_be_pickled_and_saved_as_a_model(tmp_path):
    x, _ = noisy_classes(seed=2)
    expected = fitted().transform(x)
    joblib.dump(fitted(), tmp_path / "learner.joblib")
    for copy in (pickle.loads(pickle.dumps(fitted())), joblib.load(tmp_path / "learner.joblib")):
        np.testing.assert_array_equal(copy.transform(x), expected)
    fitted().embedder_.save(tmp_path / "model")
    np.testing.assert_array_equal(nearkin.load(tmp_path / "model").encode(x), expected)


def test_parameters_are_cloned_and_set_by_name():
    learner = quick(method="triplet", method_settings={"margin": 0.3})
    assert clone(learner).get_params() == learner.get_params()
    assert learner.set_params(dim=3, method="rank").get_params()["dim"] == 3
    assert not hasattr(clone(fitted()), "embedder_")


def test_a_grid_search_covers_methods_and_their_settings():
    x, y = noisy_classes(60)
    pipeline = make_pipeline(StandardScaler(), quick(epochs=1), KNeighborsClassifier(1))
    grid = [
        {"metriclearner__method": ["triplet"], "metriclearner__method_settings": [{"margin": np.float64(0.1)}]},
        {"metriclearner__method": ["rank"], "metriclearner__dim": np.array([2, 3])},
    ]
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(x, y)
    assert len(search.cv_results_["params"]) == 3
    alone = GridSearchCV(quick(), {"learning_rate": np.logspace(-4, -3, 2)}, cv=2, error_score="raise").fit(x, y)
    assert 0 <= alone.best_score_ <= 1


def test_a_setting_of_the_method_has_an_effect():
    x, y = noisy_classes()
    near, far = (quick(method="triplet", method_settings={"margin": m}).fit(x, y).transform(x) for m in (0.05, 1.0))
    assert not np.allclose(near, far)


def test_data_frames_keep_their_feature_names():
    pandas = pytest.importorskip("pandas")
    x, y = noisy_classes()
    table = pandas.DataFrame(x, columns=list("abcdef"), index=np.arange(len(x)) + 7)
    learner = quick().fit(table, pandas.Series(y, index=table.index)).set_output(transform="pandas")
    assert learner.feature_names_in_.tolist() == list("abcdef")
    assert learner.n_features_in_ == 6
    embedded = learner.transform(table)
    assert embedded.columns.tolist() == learner.get_feature_names_out().tolist()
    assert embedded.columns.tolist() == [f"metriclearner{i}" for i in range(4)]
    assert embedded.index.equals(table.index)
    np.testing.assert_array_equal(embedded.to_numpy(), fitted().transform(x))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (30, 1), (30, 2), (4, 1, 1, 1), (2, 2, 2, 1), (500, 5, 5), (9, 9)])
@pytest.mark.parametrize("method", ["rank", "triplet", "softmax"])
def test_small_and_imbalanced_data_work(method, sizes):
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    embedded = quick(method=method, epochs=1).fit(x, y).transform(x)
    assert np.isfinite(embedded).all()


@pytest.mark.parametrize("sizes", [(2, 2), (30, 1), (30, 2), (4, 1, 1, 1), (2, 2, 2, 1), (500, 5, 5), (8, 8)])
def test_every_batch_of_small_data_has_two_classes(sizes, monkeypatch):
    batches = []
    step = Method.step
    monkeypatch.setattr(
        Method,
        "step",
        lambda self, embed, batch: batches.append(batch.labels.unique()) or step(self, embed, batch),
    )
    y = np.repeat(np.arange(len(sizes)), sizes)
    quick().fit(np.random.default_rng(0).normal(size=(len(y), 3)), y)
    assert batches
    assert all(len(labels) > 1 for labels in batches)


@pytest.mark.parametrize(
    ("settings", "y", "sentence"),
    [
        ({}, [0] * 6, "y has only one class"),
        ({}, range(6), "every class has only one item; use method=.softmax"),
        ({}, np.linspace(0, 1, 6), "Unknown label type"),
        ({"method": "ranks"}, [0, 1] * 3, "did you mean 'rank'"),
        ({"method_settings": {"margin": 1.0}}, [0, 1] * 3, "setting 'margin' is unknown"),
        ({"backbone": "small"}, [0, 1] * 3, "use 'mlp' or 'linear'"),
        ({"dim": 2.5}, [0, 1] * 3, "dim must be an integer"),
        ({"batch_size": 100}, [0, 1] * 3, "use batch_size=6 or less"),
        ({"batch_size": 1}, [0, 1] * 3, "batch_size must be an integer >= 4, or 0 for the default, got 1"),
        ({"batch_size": 3}, [0, 1] * 3, "batch_size must be an integer >= 4, or 0 for the default, got 3"),
        ({"batch_size": "8"}, [0, 1] * 3, "batch_size must be an integer, got '8'"),
        ({"method": "spectral", "dim": 9}, [0, 1] * 3, "use dim=1 or a larger batch_size"),
    ],
)
def test_invalid_settings_and_data_are_refused_in_one_sentence(settings, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        quick(**settings).fit(np.random.default_rng(0).normal(size=(6, 2)), y)


def test_a_score_needs_two_items_of_one_class():
    with pytest.raises(UserError, match="no query has another item of its class"):
        fitted().score(noisy_classes()[0][:3], ["a", "b", "c"])


def test_nothing_is_printed_unless_verbose(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    x, y = load_iris(return_X_y=True)
    quick(epochs=1).fit(x, y).score(x, y)
    assert capsys.readouterr() == ("", "")
    quick(epochs=1, verbose=True).fit(x, y)
    assert "training" in capsys.readouterr().err


def test_ctrl_c_stops_the_fit(monkeypatch):
    monkeypatch.setattr(loop, "stop_requests", lambda: nullcontext(lambda: True))
    with pytest.raises(KeyboardInterrupt):
        quick().fit(*noisy_classes())
