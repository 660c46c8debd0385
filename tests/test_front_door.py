"""What a user should be able to write, line by line, on tiny data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.losses import MultiSimilarityLoss, ProxyAnchorLoss
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import nearkin
from nearkin.errors import UserError

FAST: dict[str, Any] = {"epochs": 1, "dim": 8, "device": "cpu", "batch_size": 8, "workers": 0, "logger": "none"}


class Flat(nn.Module):
    """A user-defined backbone: the mean colours of a coarse grid."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(48, 16)

    def forward(self, images: Tensor) -> Tensor:
        coarse = nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)
        mixed: Tensor = self.mix(coarse)
        return mixed


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos() -> str:
    """Eight classes of four noisy images; each class has its own colour."""
    random = np.random.default_rng(0)
    for name in "abcdefgh":
        folder = Path("photos") / name
        folder.mkdir(parents=True)
        colour = random.integers(0, 200, 3)
        for number in range(4):
            pixels = (colour + random.integers(0, 55, (16, 16, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return "photos"


@pytest.fixture
def vectors() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    labels = np.repeat([f"class {number}" for number in range(8)], 6)
    centres = np.repeat(random.normal(size=(8, 5)), 6, axis=0)
    return (centres + 0.1 * random.normal(size=(48, 5))).astype(np.float32), labels


def test_photos_to_a_searchable_gallery(photos: str) -> None:
    run = nearkin.train(photos, method="rank", backbone="small", image_size=16, **FAST)
    assert run.model.encode("photos/a/0.png").shape == (8,)
    assert run.model.encode(["photos/a/0.png", "photos/b/0.png"]).shape == (2, 8)
    assert nearkin.evaluate(run).scores["recall@1"] == run.scores["after"]["recall@1"]
    assert nearkin.evaluate(run.model, data=photos, split="test").split == "test"
    with nearkin.index(run, photos, "photos.index") as gallery:
        assert len(gallery.search("photos/a/0.png", k=3)) == 3
        assert gallery.match("photos/a/0.png") is not None
        assert gallery.remove("photos/a/0.png") == 1
        gallery.add("photos/a/0.png")
        assert len(gallery) == 32


@pytest.mark.parametrize("kind", ["arrays", "tensors", "torch dataset"])
def test_data_in_memory(vectors: tuple[Any, Any], kind: str) -> None:
    values, labels = vectors
    numbers = torch.tensor(np.unique(labels, return_inverse=True)[1])
    data = {
        "arrays": (values, labels),
        "tensors": (torch.tensor(values), numbers),
        "torch dataset": TensorDataset(torch.tensor(values), numbers),
    }[kind]
    run = nearkin.train(data, **FAST)
    assert run.model.encode(values).shape == (48, 8)
    assert "<" in run.settings().data.source
    with pytest.raises(UserError, match="data="):
        nearkin.evaluate(run.folder)
    assert nearkin.evaluate(run).scores["recall@1"] == run.scores["after"]["recall@1"]
    assert nearkin.evaluate(run.folder, data=data, split="test").scores["recall@1"] == run.scores["after"]["recall@1"]
    assert nearkin.resume(run, epochs=2, data=data).scores["best_epoch"] <= 2


def test_an_image_folder_of_torchvision(photos: str) -> None:
    from torchvision.datasets import ImageFolder

    run = nearkin.train(ImageFolder(photos), backbone="small", image_size=16, **FAST)
    assert run.scores["after"]


def test_a_hugging_face_dataset_and_a_user_defined_module(photos: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    files = sorted(Path(photos).rglob("*.png"))
    columns = {"image": [str(file) for file in files], "label": [file.parent.name for file in files]}
    made = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    made.save_to_disk("cats")
    backbone = Flat()
    run = nearkin.train(datasets.load_from_disk("cats"), backbone=backbone, image_size=16, **FAST)
    assert run.settings().model.backbone.endswith("Flat")
    with pytest.raises(UserError, match="backbone="):
        nearkin.load(run.folder)
    with pytest.raises(UserError, match="leave out weights"):
        nearkin.load(run, weights="nothere.safetensors")
    assert nearkin.load(run).encode(str(files[0])).shape == (8,)
    model = nearkin.load(run.folder, backbone=Flat())
    assert model.encode(str(files[0])).shape == (8,)
    found = nearkin.embed(run, photos, backbone=Flat())
    np.testing.assert_allclose(found, model.encode([str(file) for file in files]), atol=1e-6)
    for added in (32, 0):  # the second time, nothing is new
        with nearkin.index(run, photos, "own.index", backbone=Flat()) as gallery:
            assert gallery.result is not None and gallery.result.added == added
    monkeypatch.setattr("nearkin.models.onnx.export_onnx", lambda network, *_: network)  # the export takes seconds
    exported: Any = nearkin.export(run, backbone=Flat())
    assert exported.spec == model.model.spec
    with pytest.raises(UserError, match="an Embedder already has its backbone; leave out backbone"):
        nearkin.embed(model, photos, backbone=Flat())


def test_method_objects_losses_and_init(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, method=nearkin.methods.Triplet(margin=0.3), **FAST)
    assert run.settings().method_settings["margin"] == 0.3
    seen: list[dict[str, Any]] = []
    other = nearkin.train(
        vectors, loss=MultiSimilarityLoss(), init=run, callbacks=[lambda _, metrics: seen.append(metrics)], **FAST
    )
    assert other.settings().model.init == str(run.folder.absolute()) and [each["epoch"] for each in seen] == [1]
    with pytest.raises(UserError, match="leave out dim"):
        nearkin.train(vectors, init=run, **FAST | {"dim": 4})


def test_embeddings_alone_have_scores() -> None:
    result = nearkin.evaluate(np.array([[0.0], [1.0], [5.0], [6.0]]), ["a", "a", "b", "b"], recall_at=1)
    assert result.scores["recall@1"] == 1 and "Recall@1" in str(result)
    with pytest.raises(UserError, match="without labels"):
        nearkin.evaluate(np.zeros((3, 2)))


def test_samplers_work_with_a_data_loader() -> None:
    labels = np.arange(8).repeat(8)
    dataset = TensorDataset(torch.arange(64), torch.tensor(labels))
    loader = DataLoader(dataset, batch_sampler=nearkin.sampling.GroupSampler(labels, 16, per_class=8))
    assert all(len(set(batch.tolist())) == 2 for _, batch in loader)


class Vector(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        return embeddings.sum(1)


class Broken(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        return embeddings.sum() * float("nan")


class Detached(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        return torch.tensor(1.0)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": Vector()}, r"returned a tensor of shape \(\d+,\); return a scalar"),
        ({"loss": Broken()}, "returned nan for random unit vectors"),
        ({"loss": nn.TripletMarginLoss()}, r"cannot be called as loss\(embeddings, labels\).*'negative'"),
        ({"loss": ProxyAnchorLoss(2, 8)}, "with embeddings of shape .* and labels 0 to 3"),
        ({"loss": Detached()}, "a scalar without a gradient"),
        ({"loss": Vector}, r"got the class Vector; pass an object, Vector\(...\)"),
        ({"loss": "triplet"}, 'to choose a method by name, use method="triplet"'),
        ({"loss": lambda embeddings, _: embeddings.sum()}, "loss must be a torch module"),
        ({"loss": Vector(), "method": "rank"}, "either method"),
        ({"backbone": Pair()}, "returned a tuple; return a tensor"),
        ({"logger": "tensorbord"}, "did you mean 'tensorboard'"),
        ({"method": nearkin.methods.Magnet}, r"got the class Magnet; pass an object, Magnet\(...\)"),
        ({"method": 5}, 'got an object of type int; pass method="rank"'),
        ({"backbone": Pair}, r"got the class Pair; pass an object, Pair\(...\)"),
        ({"init": 3}, "init must be a run or a folder"),
        ({"callbacks": print}, r"callbacks=\[function\]"),
        ({"callbacks": [3]}, r"callbacks=\[function\]"),
        ({"methd": "rank"}, "did you mean 'method'"),
        ({"epoch": 3}, "did you mean 'epochs'"),
    ],
)
def test_bad_objects_give_one_sentence(vectors: tuple[Any, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        nearkin.train(vectors, **FAST | changes)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nearkin.train(TensorDataset), "TensorDataset is a class, not data"),
        (lambda: nearkin.train((np.eye(4), [0, 0, np.nan, 1])), "1 of 4 labels are NaN or None"),
        (lambda: nearkin.train((np.eye(4), [0, 0, None, 1])), "1 of 4 labels are NaN or None"),
        (lambda: nearkin.evaluate(None, [0, 1]), "a NoneType cannot be evaluated"),
        (lambda: nearkin.evaluate(nn.Linear(2, 2), data="photos"), "a Linear cannot be evaluated"),
        (
            lambda: nearkin.evaluate(np.eye(4), [0, 0, 1, 1], recall_at=1.5),
            r"recall_at must be integers >= 1, such as .* got \[1.5\]",
        ),
        (lambda: nearkin.load(3), "pass a run, a folder or a name, not an object of type int"),
    ],
)
def test_other_wrong_types_give_one_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_the_same_objects_are_evaluated_on_unseen_classes(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, **FAST)
    again = nearkin.evaluate(run, data=vectors)
    assert again.split == "test"
    assert again.scores["map@r"] == pytest.approx(run.scores["after"]["map@r"])
    others = vectors[0] + 1, vectors[1]
    assert nearkin.evaluate(run, data=others).split == "all"


def test_a_folder_is_recognised_by_its_path(photos: str) -> None:
    run = nearkin.train(photos, backbone="small", **FAST)
    assert nearkin.evaluate(run, data=photos).split == "test"


def test_a_run_says_what_to_pass_again_and_how_it_went(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, loss=MultiSimilarityLoss(), **FAST)
    config = run.config_file.read_text()
    assert "nearkin.resume(run, data=..., loss=...), nearkin.evaluate(run, data=...)" in config
    assert repr(run).startswith(f"<Run {run.folder}: ") and ". " not in repr(run)
    assert repr(nearkin.training.Run("elsewhere")) == "<Run elsewhere: not finished>"
    assert run.resume_command == f'nearkin.resume("{run.folder}", data=..., loss=...)'


def test_a_run_resumes_with_the_loss_it_was_started_with(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, loss=MultiSimilarityLoss(), per_class=2, **FAST)
    with pytest.raises(UserError, match="started with another method or loss"):
        nearkin.resume(run, 2, data=vectors, loss=ProxyAnchorLoss(4, 8))
    more = nearkin.resume(run, 2, data=vectors, loss=MultiSimilarityLoss())
    assert more.settings().method_settings["per_class"] == 2
    assert [record["epoch"] for record in more.metrics if record["kind"] == "training"] == [1, 2]


def test_a_run_resumes_with_the_method_it_was_started_with(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, method=nearkin.methods.Rank(alpha=2.0), **FAST)
    with pytest.raises(UserError, match=r"alpha was 2\.0, got 4\.0"):
        nearkin.resume(run, 2, data=vectors, method=nearkin.methods.Rank())
    nearkin.resume(run, 2, data=vectors, method=nearkin.methods.Rank(alpha=2.0))


def test_a_backbone_of_another_size_is_not_mistaken_for_a_damaged_checkpoint(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, backbone=nn.Linear(5, 8), **FAST)
    with pytest.raises(UserError, match=r"does not fit this learner .* pass the objects that the run was started with"):
        nearkin.resume(run, 2, data=vectors, backbone=nn.Linear(5, 6))


def test_data_given_twice_are_refused(vectors: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match="leave out source"):
        nearkin.train(vectors, source="glyphs", **FAST)


def test_fit_all_copies_only_what_is_trained(vectors: tuple[Any, Any]) -> None:
    epochs: list[int] = []
    lock = threading.Lock()  # cannot be copied

    class Callback:
        def __init__(self) -> None:
            self.lock = lock

        def __call__(self, _run: Any, metrics: dict[str, Any]) -> None:
            epochs.append(metrics["epoch"])

    backbone = nn.Linear(5, 8)
    run = nearkin.train(vectors, backbone=backbone, callbacks=[Callback()], fit_all=True, **FAST)
    assert run.folder.name.endswith("-all") and epochs == [1, 1]


def test_numpy_numbers_are_accepted(vectors: tuple[Any, Any]) -> None:
    run = nearkin.train(vectors, **FAST | {"dim": np.int64(4), "weight_decay": np.float32(0.5)})
    assert run.model.dim == 4 and run.settings().training.weight_decay == 0.5


def test_public_names_are_listed() -> None:
    names = dir(nearkin)
    assert {"train", "resume", "load", "evaluate", "embed", "index", "export", "methods", "losses"} <= set(names)
    assert all(hasattr(nearkin, name) for name in names)
