"""Draw the figures of these pages that show what training does, on the built-in glyphs.

    python docs/figures.py                # all of them, in a few minutes
    python docs/figures.py rank story     # some of them

``learning-<method>.png`` shows new examples of ten known classes while a method learns. Each panel is a t-SNE map of
the 32-dimensional embedding, initialised from the panel after it. ``story.png`` shows queries of unseen classes with
their nearest neighbours before and after training.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.patches import Rectangle
from sklearn.manifold import TSNE

import nearkin
from nearkin.clustering import nearest_neighbours
from nearkin.data import ImageArray
from nearkin.reports.figures import COLOURS, plain_figure

IMAGES = Path(__file__).parent / "images"
METHODS = ("facility-location", "spectral", "divide-and-conquer", "magnet", "rank")
EPOCHS = (1, 2, 4, 10, 30)
QUERIES, NEIGHBOURS = 5, 5
RIGHT, WRONG = "#2a9d4a", "#d1373c"

Points = npt.NDArray[np.float32]


def learning(method: str, folder: Path) -> None:
    """A row of maps of the same items after different numbers of epochs."""
    glyphs = nearkin.load_dataset("glyphs:classes=10,per_class=100")
    assert isinstance(glyphs.items, ImageArray)
    images, labels = glyphs.items.pixels, glyphs.labels
    new = np.arange(len(labels)) % 2 == 1  # the maps show every other example of a class
    data = images[~new], labels[~new]
    run = nearkin.train(
        data, method, folder / method, dim=32, epochs=EPOCHS[0], split="all", validation=0, schedule="constant"
    )
    embedded = [run.model.encode(images[new])]
    embedded += [nearkin.resume(run, epochs=epochs, data=data).model.encode(images[new]) for epochs in EPOCHS[1:]]
    figure = plain_figure(2 * len(EPOCHS), 2.2)
    panels = figure.subplots(1, len(EPOCHS))
    for axes, places, epochs in zip(panels, maps(embedded), EPOCHS, strict=True):
        axes.scatter(*places.T, s=4, c=[COLOURS[label] for label in labels[new]], linewidths=0)
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
        axes.set_title(f"epoch {epochs}", fontsize=9)
        axes.spines[:].set_color("0.8")
    figure.savefig(IMAGES / f"learning-{method}.png", dpi=110)


def maps(embedded: list[Points]) -> list[Points]:
    """t-SNE maps, computed from last to first; each starts from the next one, so that items keep their places."""
    places: list[Points] = []
    for points in reversed(embedded):
        start = places[-1] / (1e4 * places[-1].std()) if places else "pca"
        places.append(TSNE(2, init=start, random_state=0).fit_transform(points))
    return places[::-1]


def story(folder: Path) -> None:
    """Queries whose neighbours are wrong by pixels, and right after training on other classes."""
    run = nearkin.train("glyphs", "rank", folder / "story", epochs=20)
    glyphs = nearkin.load_dataset("glyphs")
    assert isinstance(glyphs.items, ImageArray) and glyphs.split is not None
    test = glyphs.split == "test"
    images, labels = glyphs.items.pixels[test], glyphs.labels[test]
    columns = {
        "before: by pixels": neighbours(images.reshape(len(images), -1)),
        "after training, on other characters": neighbours(run.model.encode(images)),
    }
    before, after = ((labels[found] == labels[:, None]).mean(1) for found in columns.values())
    typical = np.flatnonzero((before < 0.4) & (after > 0.9))
    chosen = np.random.default_rng(3).choice(typical, QUERIES, replace=False)
    width = 1 + 2 * NEIGHBOURS + 1.0
    figure = plain_figure(0.75 * width, 0.75 * (QUERIES + 0.5))
    axes = figure.add_subplot()
    for row, query in enumerate(chosen):
        show(axes, images[query], 0, row, "0.3")
        for block, found in enumerate(columns.values()):
            for place, item in enumerate(found[query]):
                right = labels[item] == labels[query]
                show(axes, images[item], 1.5 + block * (NEIGHBOURS + 0.5) + place, row, RIGHT if right else WRONG)
    for x, text in zip((0.5, 1.5 + NEIGHBOURS / 2, 2 + 1.5 * NEIGHBOURS), ["query", *columns], strict=True):
        axes.text(x, -0.2, text, ha="center", fontsize=11)
    axes.set(xlim=(0, width), ylim=(QUERIES, -0.5), aspect="equal")
    axes.set_axis_off()
    figure.savefig(IMAGES / "story.png", dpi=110)


def neighbours(points: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """(items, NEIGHBOURS) The nearest other items of each item."""
    space = torch.as_tensor(points.astype(np.float32))
    return nearest_neighbours(space, space, NEIGHBOURS, exclude=torch.arange(len(space)))[1].numpy()


def show(axes: object, image: npt.NDArray[np.uint8], left: float, top: float, colour: str) -> None:
    axes.imshow(255 - image, cmap="gray", extent=(left + 0.08, left + 0.92, top + 0.92, top + 0.08), vmin=0, vmax=255)  # type: ignore[attr-defined]
    axes.add_patch(Rectangle((left + 0.06, top + 0.06), 0.88, 0.88, fill=False, color=colour, linewidth=2.5))  # type: ignore[attr-defined]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for wanted in sys.argv[1:] or [*METHODS, "story"]:
            story(Path(scratch)) if wanted == "story" else learning(wanted, Path(scratch))
