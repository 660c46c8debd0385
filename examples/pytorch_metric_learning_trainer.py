"""nearkin and pytorch-metric-learning (PML) together: a loss of one in the training loop of the other.

python examples/pytorch_metric_learning_trainer.py    # about ten seconds; the first run also renders the images
python examples/pytorch_metric_learning_trainer.py --quick
"""

from __future__ import annotations

import json
import sys
from tempfile import TemporaryDirectory

import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn
from torch.utils.data import BatchSampler, TensorDataset

import nearkin
from nearkin.losses import RankApproximationLoss
from nearkin.sampling import GroupSampler

EPOCHS, CLASSES = (4, 60) if "--quick" in sys.argv else (8, 120)
GLYPHS = f"glyphs:classes={CLASSES},per_class=16"


class GroupsForTrainer(GroupSampler, BatchSampler):
    """A batch sampler that PML's trainers recognise, because it inherits from torch's."""


data = nearkin.load_dataset(GLYPHS)
images = torch.from_numpy(data.items.pixels).unsqueeze(1) / 255  # (items, 1, 28, 28)
labels = torch.from_numpy(data.labels)
train, test = (torch.from_numpy(data.split == split) for split in ("train", "test"))  # of different classes

torch.manual_seed(0)
trunk = nn.Sequential(nn.Conv2d(1, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten())
models = {"trunk": trunk, "embedder": nn.Linear(64 * 7 * 7, 64)}


@torch.no_grad()
def recall() -> float:
    embeddings = models["embedder"].cpu()(trunk.cpu()(images[test]))
    return nearkin.evaluate(nearkin.Space.of(embeddings, labels[test]), clustering=None).scores["recall@1"]


before = recall()
MetricLossOnly(
    models=models,
    optimizers={f"{name}_optimizer": torch.optim.Adam(part.parameters(), lr=1e-3) for name, part in models.items()},
    batch_size=None,  # set by the sampler
    loss_funcs={"metric_loss": RankApproximationLoss()},
    dataset=TensorDataset(images[train], labels[train]),
    sampler=GroupsForTrainer(labels[train], batch_size=64, per_class=8),
    data_device=torch.device("cpu"),
    dataloader_num_workers=0,
).train(num_epochs=EPOCHS)
print(f"nearkin's loss in PML: Recall@1 on unseen classes: {before:.3f} before, {recall():.3f} after")

with TemporaryDirectory() as folder:
    run = nearkin.train(GLYPHS, method="pml", loss_name="CircleLoss", epochs=EPOCHS, out=f"{folder}/run")
    scores = json.loads(run.scores_file.read_text())
before, after = (scores[when]["recall@1"] for when in ("before", "after"))
print(f"PML's loss in nearkin: Recall@1 on unseen classes: {before:.3f} before, {after:.3f} after")
