"""Which variant of a loss is the better default: contrastive squared or not, Proxy-NCA with or without the positive.

    python benchmarks/loss_forms.py                                  # digits and glyphs, a few minutes on one core
    python benchmarks/loss_forms.py --features cub.npz cars.npz      # also heads on features of a frozen backbone

Each variant is evaluated on classes that were not trained on, with three seeds, each with other held-out classes. Every
variant is trained with the same learning rates and reported at its best one. Embeddings have 64 dimensions and unit
length. The digits are scikit-learn's, with a small network; the glyphs (60 classes of 20) use a small convolutional
one; a file of features has ``f`` (items, dim) and ``p``, paths whose first folder is the class. A third of the classes
is held out. The test classes of the glyphs, and the second half of the classes of a file, are never used. Scores are
those of the last epoch, so they choose nothing but the learning rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nearkin
from nearkin.losses import make_loss
from nearkin.sampling import GroupSampler

DIM, BATCH, PER_CLASS, SEEDS, RATES = 64, 128, 4, 3, (1e-4, 1e-3)
FORMS = {
    "contrastive, squared": ("contrastive", {"squared": True}),
    "contrastive": ("contrastive", {"squared": False}),
    "proxy-nca, others only": ("proxy-nca", {"scale": 3.0, "positive_in_denominator": False}),
    "proxy-nca": ("proxy-nca", {"scale": 3.0, "positive_in_denominator": True}),
}
Data = tuple[Tensor, Tensor, int, Callable[[], nn.Module]]  # inputs, labels, epochs, network


def digits() -> Data:
    x, y = load_digits(return_X_y=True)
    inputs = torch.from_numpy(x / 16).float()
    return inputs, torch.from_numpy(y), 20, lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, DIM))


def glyphs() -> Data:
    data = nearkin.load_dataset("glyphs:classes=120,per_class=20")
    train = data.split == "train"  # the other classes are the test split

    def network() -> nn.Module:
        layers = [nn.Conv2d(1, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(64 * 7 * 7, DIM))

    pixels = torch.from_numpy(data.items.pixels[train]).unsqueeze(1) / 255
    return pixels, torch.from_numpy(data.labels[train]), 20, network


def features(*files: Path) -> Data:
    stored = [np.load(file) for file in files]
    classes = np.array([path.decode().split("/")[0] for file in stored for path in file["p"]])
    names, labels = np.unique(classes, return_inverse=True)
    first = labels < (len(names) + 1) // 2
    inputs = torch.from_numpy(np.concatenate([file["f"] for file in stored])[first])
    inputs = nn.functional.normalize(inputs) * inputs.shape[1] ** 0.5
    return inputs, torch.from_numpy(labels[first]), 20, lambda: nn.Linear(inputs.shape[1], DIM)


def trained(data: Data, form: str, rate: float, seed: int) -> tuple[float, float]:
    """Trains on two thirds of the classes; Recall@1 and MAP@R on the others."""
    inputs, labels, epochs, network = data
    order = np.random.default_rng(seed).permutation(labels.unique().numpy())
    held_out = torch.from_numpy(np.isin(labels.numpy(), order[: len(order) // 3]))
    own = labels[~held_out].unique(return_inverse=True)[1]
    name, settings = FORMS[form]
    torch.manual_seed(seed)
    model = network()
    sizes = {"classes": int(own.max()) + 1, "dim": DIM} if name == "proxy-nca" else {}
    loss = make_loss(name, **settings, **sizes)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=rate)
    batches = GroupSampler(own, min(BATCH, PER_CLASS * len(own.unique())), PER_CLASS, seed)
    train = inputs[~held_out]
    for items in (items for _ in range(epochs) for items in batches):
        optimizer.zero_grad()
        loss(model(train[items]), own[items]).backward()
        optimizer.step()
    with torch.no_grad():
        embeddings = nn.functional.normalize(model(inputs[held_out]))
    scores = nearkin.evaluate(nearkin.Space.of(embeddings, labels[held_out]), clustering=None).scores
    return scores["recall@1"], scores["map@r"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", nargs="*", default=[], type=Path)
    every = {"digits": digits, "glyphs": glyphs}
    for file in parser.parse_args().features:
        every[file.stem] = lambda file=file: features(file)
    print("| data | loss | rate | Recall@1, % | MAP@R, % |\n|---|---|---|---|---|")
    for source, load in every.items():
        data = load()
        for form in FORMS:
            found = {rate: [trained(data, form, rate, seed) for seed in range(SEEDS)] for rate in RATES}
            rate, scores = max(found.items(), key=lambda each: mean(map_at_r for _, map_at_r in each[1]))
            recall, map_at_r = (f"{100 * mean(c):.1f} ± {100 * stdev(c):.1f}" for c in zip(*scores, strict=True))
            print(f"| {source} | {form} | {rate:g} | {recall} | {map_at_r} |", flush=True)


if __name__ == "__main__":
    main()
