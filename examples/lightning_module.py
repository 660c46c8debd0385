"""A LightningModule with a nearkin loss, a nearkin batch sampler, and nearkin's scores after every epoch.

    python examples/lightning_module.py         # ten seconds on one core; the first run also renders the images
    python examples/lightning_module.py --quick

Needs `pip install lightning`.
"""

# ruff: noqa: I001
from __future__ import annotations

import logging
import sys

import nearkin._torchvision  # before lightning: fixes torchvision with a CPU build of torch
import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nearkin.losses import make_loss
from nearkin.sampling import GroupSampler

EPOCHS, CLASSES = (4, 60) if "--quick" in sys.argv else (8, 120)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class MetricLearning(lightning.LightningModule):
    def __init__(self, loss: str = "rank", dim: int = 64, **settings: float) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.model = nn.Sequential(*layers, nn.Linear(64 * 7 * 7, dim))
        self.loss = make_loss(loss, **settings)
        self.embedded: list[tuple[Tensor, Tensor]] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)  # includes the parameters of the loss, if any

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.embedded.append((self.model(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        embeddings, labels = (torch.cat(column) for column in zip(*self.embedded, strict=True))
        self.embedded.clear()
        scores = nearkin.evaluate(nearkin.Space.of(embeddings, labels), clustering=None).scores
        self.log_dict({name: scores[name] for name in ("recall@1", "map@r")})


data = nearkin.load_dataset(f"glyphs:classes={CLASSES},per_class=16")
images = torch.from_numpy(data.items.pixels).unsqueeze(1) / 255  # (items, 1, 28, 28)
labels = torch.from_numpy(data.labels)
train, test = (torch.from_numpy(data.split == split) for split in ("train", "test"))  # of different classes

batches = GroupSampler(labels[train], batch_size=64, per_class=8)
training = DataLoader(TensorDataset(images[train], labels[train]), batch_sampler=batches)
validation = DataLoader(TensorDataset(images[test], labels[test]), batch_size=256)

lightning.seed_everything(0, verbose=False)
module = MetricLearning("rank", alpha=4.0)
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    devices=1,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
before = trainer.validate(module, validation, verbose=False)[0]["recall@1"]
trainer.fit(module, training, validation)
after = trainer.callback_metrics["recall@1"].item()
print(f"rank: Recall@1 on unseen classes: {before:.3f} before, {after:.3f} after")
