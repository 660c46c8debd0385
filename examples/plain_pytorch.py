"""nearkin's losses, batch samplers and scores in your own training loop.

    python examples/plain_pytorch.py            # ten seconds on one core; the first run also renders the images
    python examples/plain_pytorch.py --quick

There are two loops: the usual one, and one for a method that embeds the whole dataset before every epoch.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn

import nearkin
from nearkin.clustering import kmeans_per_group, nearest_in_other_groups
from nearkin.losses import MagnetLoss, RankApproximationLoss
from nearkin.sampling import ClusterIndex, GroupSampler, NeighbourhoodSampler

EPOCHS, CLASSES = (4, 60) if "--quick" in sys.argv else (8, 120)

data = nearkin.load_dataset(f"glyphs:classes={CLASSES},per_class=16")
images = torch.from_numpy(data.items.pixels).unsqueeze(1) / 255  # (items, 1, 28, 28)
labels = torch.from_numpy(data.labels)
# The two splits have different classes.
(images, labels), test = ((images[data.split == split], labels[data.split == split]) for split in ("train", "test"))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64 * 7 * 7, 64))


@torch.no_grad()
def space(model: nn.Module, images: Tensor, labels: Tensor) -> nearkin.Space:
    """Embeds all images: the input of scores and methods."""
    return nearkin.Space.of(model(images), labels)


def recall(model: nn.Module) -> float:
    return nearkin.evaluate(space(model, *test), clustering=None).scores["recall@1"]


def train_with_rank(model: nn.Module) -> None:
    loss = RankApproximationLoss()
    batches = GroupSampler(labels, batch_size=64, per_class=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for items in batches:
            optimizer.zero_grad()
            loss(model(images[items]), labels[items]).backward()
            optimizer.step()


def train_with_magnet(model: nn.Module) -> None:
    loss = MagnetLoss(reduction="none")
    batches = NeighbourhoodSampler(labels, batch_size=48, per_cluster=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        whole = space(model, images, labels)
        found = kmeans_per_group(whole.embeddings, whole.labels, 2)  # two clusters in every class
        impostors = nearest_in_other_groups(found.centroids, found.group_of, k=11)  # 48 items are 12 clusters
        batches.refresh(ClusterIndex(found.assignment.numpy(), impostors.numpy()))
        for step, items in enumerate(batches, start=epoch * len(batches)):
            losses = loss(model(images[items]), labels[items], clusters=found.assignment[items])
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            # Clusters with large losses are drawn more often.
            batches.losses.record(step, np.array(items), losses.detach().numpy())


for name, method in {"rank": train_with_rank, "magnet": train_with_magnet}.items():
    model = network()
    before = recall(model)
    method(model)
    print(f"{name}: Recall@1 on unseen classes: {before:.3f} before, {recall(model):.3f} after")
