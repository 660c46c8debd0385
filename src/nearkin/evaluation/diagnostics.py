"""How a space is spread out: distances within and between classes, and how evenly it uses its dimensions.

Spectral decay: Roth et al., "Revisiting Training Strategies and Generalization Performance in Deep Metric Learning"
(ICML 2020), ρ = KL(U ‖ S) = Σᵢ 1/d · ln((1/d) / sᵢ), where s₁ ≥ … ≥ s_d are the singular values of the embeddings (not
centred), divided by their sum. ρ is 0 if all directions are used equally. Negative pairs within and across clusters:
Sanakoyeu et al., "Divide and Conquer the Embedding Space for Metric Learning" (CVPR 2019), Fig. 8.

Deviations: an unused direction would make ρ infinite, so singular values below RESOLUTION times the largest, which are
rounding errors in float32, are raised to this bound. The inter-class distance is the mean over pairs of items, like the
intra-class distance; Roth et al. use pairs of class means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from nearkin.clustering.distances import row_blocks
from nearkin.errors import UserError
from nearkin.evaluation.metrics import known_metrics, metric
from nearkin.space import Space

RESOLUTION = torch.finfo(torch.float32).eps
COLLAPSED = 0.01  # of the largest singular value: what is below it holds less than 1/10,000 of its variance
BINS = 50


@dataclass(frozen=True, eq=False)
class PairDistances:
    """Distances of one kind of pairs.

    Attributes:
        mean: the mean distance; NaN if there are no such pairs.
        counts: (BINS,) the histogram of distances.
        exact: whether all pairs were measured; otherwise a uniform sample with replacement.
    """

    mean: float
    counts: Tensor
    exact: bool


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How a space is spread out.

    Attributes:
        positives, negatives: pairs of items of the same class and of different classes.
        negatives_within_clusters, negatives_across_clusters: negatives whose items are in the same cluster or in
            different ones; None if no clusters were given.
        edges: (BINS + 1,) the edges of all histograms, from 0 to the largest distance (to 1 if that is 0).
        spectrum: (min(items, dim),) float64, singular values divided by their sum, descending; zeros if all items are
            0.
        spectral_decay: ρ, 0 for an even spectrum; NaN if all items are 0.
        collapsed_dimensions: of the min(items - 1, dim) directions that the items can span around their mean, the
            share in which they spread at most COLLAPSED times as far as in the widest; 1 if all items are equal.
    """

    positives: PairDistances
    negatives: PairDistances
    negatives_within_clusters: PairDistances | None
    negatives_across_clusters: PairDistances | None
    edges: Tensor
    spectrum: Tensor
    spectral_decay: float
    collapsed_dimensions: float

    @property
    def distance_ratio(self) -> float:
        """Mean intra-class over mean inter-class distance; 1 if all items coincide, NaN if there are no such pairs."""
        intra, inter = self.positives.mean, self.negatives.mean
        if intra == inter:
            return 1.0
        return intra / inter if inter else intra * math.inf

    @property
    def scores(self) -> dict[str, float]:
        """The scores that are single numbers, by name."""
        return {each.name: float(each.compute(self)) for each in known_metrics("diagnostics")}

    @property
    def sampled(self) -> tuple[str, ...]:
        """Names of the scores that were computed from a sample of pairs."""
        intra, inter = not self.positives.exact, not self.negatives.exact
        of_a_sample = {"intra_class_distance": intra, "inter_class_distance": inter, "distance_ratio": intra or inter}
        return tuple(name for name, is_sampled in of_a_sample.items() if is_sampled)

    @property
    def histograms(self) -> dict[str, list[float] | list[int] | list[str]]:
        """Histograms of positive and negative pairs as plain lists, for a file, and which pairs were sampled."""
        return {
            "edges": self.edges.tolist(),
            "positives": self.positives.counts.tolist(),
            "negatives": self.negatives.counts.tolist(),
            "sampled": list(self.sampled),
        }


_NUMBERS: tuple[tuple[str, str, str, str, bool | None], ...] = (
    ("intra_class_distance", "positives.mean", "Intra-class distance", "mean distance of two items of a class", None),
    ("inter_class_distance", "negatives.mean", "Inter-class distance", "mean distance of items of two classes", None),
    ("distance_ratio", "distance_ratio", "Distance ratio", "intra-class over inter-class distance", False),
    ("spectral_decay", "spectral_decay", "Spectral decay", "how unevenly directions are used; 0: evenly", None),
    (
        *("collapsed_dimensions", "collapsed_dimensions", "Collapsed dimensions"),
        *("share of the directions in which items hardly spread, a hundredth of the widest spread or less", None),
    ),
)
for _name, _attribute, _title, _meaning, _better in _NUMBERS:
    metric(_name, _title, _meaning, higher_is_better=_better, needs="diagnostics")(attrgetter(_attribute))


def diagnostics(space: Space, pairs: int = 100_000, seed: int = 0, clusters: Tensor | None = None) -> Diagnostics:
    """Measures how a space is spread out, over all of its items, queries and gallery.

    Args:
        space: embeddings with labels.
        pairs: largest number of pairs of each kind to measure. If there are more, a sample of this size is drawn
            (slightly smaller across clusters, where positive pairs are drawn too and left out).
        seed: random seed of the samples, which are the same on every device.
        clusters: (items,) integers, to separate negative pairs within a cluster from those across clusters.

    >>> found = diagnostics(Space.of([[0.0, 1.0], [0.0, 3.0], [4.0, 0.0]], ["a", "a", "b"]))
    >>> found.positives.mean, found.negatives.counts.sum().item(), found.spectrum.numpy().round(4).tolist()
    (2.0, 2, [0.5585, 0.4415])
    """
    _check(space, pairs, clusters)
    classes = torch.unique(space.labels.cpu(), return_inverse=True)[1]
    kinds = [_positives(classes), _negatives(classes)]
    if clusters is not None:
        groups = torch.unique(clusters.cpu(), return_inverse=True)[1]
        kinds += [_negatives_within(groups, classes), _negatives_across(groups, classes)]
    generator = torch.Generator().manual_seed(seed)
    measured = [kind.distances(space.embeddings, pairs, generator) for kind in kinds]
    largest = max((distances.max().item() for distances, _ in measured if len(distances)), default=0.0)
    edges = np.linspace(0, largest or 1.0, BINS + 1)
    found = [
        PairDistances(distances.mean().item(), torch.from_numpy(np.histogram(distances.numpy(), edges)[0]), exact)
        for distances, exact in measured
    ]
    positives, negatives, *clustered = found
    within, across = clustered or (None, None)
    spectrum = _spectrum(space.embeddings)
    around = space.embeddings.double() - space.embeddings[0].double()  # exactly 0 where all items are equal
    around = _spectrum(around - around.mean(0))
    possible = min(len(space) - 1, space.dim)
    used = int((around > COLLAPSED * around[0]).sum())
    collapsed = (possible - used) / possible if possible else 1.0
    histogram = torch.from_numpy(edges)
    return Diagnostics(positives, negatives, within, across, histogram, spectrum, _decay(spectrum), collapsed)


def _check(space: Space, pairs: int, clusters: Tensor | None) -> None:
    if not space.embeddings.numel():
        raise UserError("the space is empty; diagnostics need at least one item and one dimension")
    if not bool(space.embeddings.isfinite().all()):
        raise UserError("the embeddings contain NaN or infinite values; leave those rows out")
    if pairs < 1:
        raise UserError(f"pairs={pairs} must be a whole number from 1")
    if clusters is not None and clusters.shape != (len(space),):
        raise UserError(f"clusters have shape {tuple(clusters.shape)}, but the space has {len(space)} items")


Range = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Pairs:
    """All ordered pairs of one kind, numbered through without listing them.

    Attributes:
        order: (N,) the items, so arranged that an item's partners are one range of places less another inside it.
        outer, inner: those ranges, (N,) first places and (N,) ends.
        apart: (N,) classes of the items, if pairs of one class are among them and have to be left out.
    """

    order: Tensor
    outer: Range
    inner: Range
    apart: Tensor | None = None

    def distances(self, embeddings: Tensor, pairs: int, generator: torch.Generator) -> tuple[Tensor, bool]:
        """Distances (P,) in float64 of all pairs, each once, or of a sample; and whether it was all."""
        skipped = self.inner[1] - self.inner[0]
        partners = self.outer[1] - self.outer[0] - skipped
        ends = partners.cumsum(0)
        starts = ends - partners
        total = int(ends[-1])
        exact = total <= 2 * pairs
        numbers = torch.arange(total) if exact else torch.randint(total, (pairs,), generator=generator)
        parts = [torch.empty(0, dtype=torch.float64)]
        for block in row_blocks(len(numbers), 4 * embeddings.shape[1]):
            number = numbers[block]
            place = torch.searchsorted(ends, number, right=True)
            partner = self.outer[0][place] + number - starts[place]
            partner += torch.where(partner >= self.inner[0][place], skipped[place], 0)
            once = (place < partner) if exact else torch.ones_like(place, dtype=torch.bool)
            first, second = self.order[place[once]], self.order[partner[once]]
            if self.apart is not None:
                differ = self.apart[first] != self.apart[second]
                first, second = first[differ], second[differ]
            a, b = (embeddings[rows.to(embeddings.device)].detach().double() for rows in (first, second))
            parts.append((a - b).square_().sum(1).sqrt_().cpu())
        return torch.cat(parts), exact


def _positives(classes: Tensor) -> _Pairs:
    order = classes.argsort(stable=True)
    places = torch.arange(len(order))
    return _Pairs(order, _runs(classes[order]), (places, places + 1))


def _negatives(classes: Tensor) -> _Pairs:
    order = classes.argsort(stable=True)
    return _Pairs(order, _everywhere(order), _runs(classes[order]))


def _negatives_within(clusters: Tensor, classes: Tensor) -> _Pairs:
    class_in_cluster = clusters * len(classes) + classes
    order = class_in_cluster.argsort(stable=True)
    return _Pairs(order, _runs(clusters[order]), _runs(class_in_cluster[order]))


def _negatives_across(clusters: Tensor, classes: Tensor) -> _Pairs:
    order = clusters.argsort(stable=True)
    return _Pairs(order, _everywhere(order), _runs(clusters[order]), apart=classes)


def _everywhere(order: Tensor) -> Range:
    return torch.zeros_like(order), torch.full_like(order, len(order))


def _runs(values: Tensor) -> Range:
    """Of every place, the first place and the end of the run of equal values around it."""
    sizes = torch.unique_consecutive(values, return_counts=True)[1]
    ends = sizes.cumsum(0)
    return (ends - sizes).repeat_interleave(sizes), ends.repeat_interleave(sizes)


def _spectrum(embeddings: Tensor) -> Tensor:
    """Singular values over their sum, from the smaller Gram matrix in float64; what is only rounding error is 0."""
    tall = embeddings.detach() if len(embeddings) >= embeddings.shape[1] else embeddings.detach().T
    width = tall.shape[1]
    scale = tall.abs().max().item() or 1.0  # keeps the squares within float64
    gram = torch.zeros(width, width, dtype=torch.float64, device=tall.device)
    for block in row_blocks(len(tall), 2 * width):
        part = tall[block].double() / scale
        gram.addmm_(part.T, part)
    values: Tensor = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0).sqrt().cpu()
    values[values < RESOLUTION * values[0]] = 0
    return values / (values.sum().item() or 1.0)


def _decay(spectrum: Tensor) -> float:
    if not spectrum[0]:
        return math.nan
    seen = spectrum.clamp(min=RESOLUTION * spectrum[0].item())
    return -(seen * len(seen)).log().mean().item()
