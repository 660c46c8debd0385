"""Diagnostics of a space: distances within and between classes, and how evenly the embeddings use their dimensions.

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
COLLAPSED = 0.01  # share of the largest singular value; directions below it have less than 1/10,000 of its variance
BINS = 50


@dataclass(frozen=True, eq=False)
class PairDistances:
    """Distances of one kind of pairs.

    Attributes:
        mean: the mean distance; NaN if there are no such pairs.
        counts: (BINS,) the histogram of distances.
        exact: whether all pairs were measured; False means a uniform sample with replacement.
    """

    mean: float
    counts: Tensor
    exact: bool


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """Diagnostics of a space.

    Attributes:
        positives: pairs of items of the same class.
        negatives: pairs of items of different classes.
        negatives_within_clusters: negative pairs in the same cluster; None if no clusters were given.
        negatives_across_clusters: negative pairs in different clusters; None if no clusters were given.
        edges: (BINS + 1,) the edges of all histograms, from 0 to the largest distance (to 1 if that is 0).
        spectrum: (min(items, dim),) float64, singular values divided by their sum, descending; all 0 if the embeddings
            are 0.
        spectral_decay: ρ, 0 for an even spectrum; NaN if all embeddings are 0.
        collapsed_dimensions: share of the min(items - 1, dim) directions around the mean in which the embeddings spread
            at most COLLAPSED times as far as in the widest direction; 1 if all embeddings are equal.
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
        """Intra-class distance divided by inter-class distance; 1 if all items coincide, NaN if one has no pairs."""
        intra, inter = self.positives.mean, self.negatives.mean
        if intra == inter:
            return 1.0
        return intra / inter if inter else intra * math.inf

    @property
    def scores(self) -> dict[str, float]:
        """The diagnostics that are metrics, by name."""
        return {each.name: float(each.compute(self)) for each in known_metrics("diagnostics")}

    @property
    def sampled(self) -> tuple[str, ...]:
        """Names of the scores that were computed from a sample of pairs."""
        intra, inter = not self.positives.exact, not self.negatives.exact
        scores = {"intra_class_distance": intra, "inter_class_distance": inter, "distance_ratio": intra or inter}
        return tuple(name for name, is_sampled in scores.items() if is_sampled)

    @property
    def histograms(self) -> dict[str, list[float] | list[int] | list[str]]:
        """Histograms of positive and negative pairs as plain lists, and the names of sampled scores, for a file."""
        return {
            "edges": self.edges.tolist(),
            "positives": self.positives.counts.tolist(),
            "negatives": self.negatives.counts.tolist(),
            "sampled": list(self.sampled),
        }


_NUMBERS: tuple[tuple[str, str, str, str, bool | None], ...] = (
    (
        *("intra_class_distance", "positives.mean", "Intra-class distance"),
        *("mean distance between two items of the same class", None),
    ),
    (
        *("inter_class_distance", "negatives.mean", "Inter-class distance"),
        *("mean distance between two items of different classes", None),
    ),
    (
        *("distance_ratio", "distance_ratio", "Distance ratio"),
        *("intra-class distance divided by inter-class distance", False),
    ),
    (
        *("spectral_decay", "spectral_decay", "Spectral decay"),
        *("how unevenly the embeddings use their directions; 0 if evenly", None),
    ),
    (
        *("collapsed_dimensions", "collapsed_dimensions", "Collapsed dimensions"),
        *("share of directions in which the embeddings spread at most 1/100 as far as in the widest direction", None),
    ),
)
for _name, _attribute, _title, _meaning, _better in _NUMBERS:
    metric(_name, _title, _meaning, higher_is_better=_better, needs="diagnostics")(attrgetter(_attribute))


def diagnostics(space: Space, pairs: int = 100_000, seed: int = 0, clusters: Tensor | None = None) -> Diagnostics:
    """Computes diagnostics of all items of a space, both queries and gallery.

    Args:
        space: embeddings with labels.
        pairs: maximum number of pairs of each kind to measure. If there are more, a sample of this size is drawn
            (slightly smaller across clusters, where positive pairs are drawn too and discarded).
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
    centred = space.embeddings.double() - space.embeddings[0].double()  # exactly 0 if all items are equal
    centred_spectrum = _spectrum(centred - centred.mean(0))
    possible = min(len(space) - 1, space.dim)
    used = int((centred_spectrum > COLLAPSED * centred_spectrum[0]).sum())
    collapsed = (possible - used) / possible if possible else 1.0
    histogram = torch.from_numpy(edges)
    return Diagnostics(positives, negatives, within, across, histogram, spectrum, _decay(spectrum), collapsed)


def _check(space: Space, pairs: int, clusters: Tensor | None) -> None:
    if not space.embeddings.numel():
        raise UserError("the space is empty; diagnostics need at least one item and one dimension")
    if not bool(space.embeddings.isfinite().all()):
        raise UserError("the embeddings contain NaN or infinite values; remove those rows")
    if pairs < 1:
        raise UserError(f"pairs must be an integer >= 1, got {pairs}")
    if clusters is not None and clusters.shape != (len(space),):
        raise UserError(f"clusters must have shape ({len(space)},), one per item, got {tuple(clusters.shape)}")


Range = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class _Pairs:
    """All ordered pairs of one kind, numbered consecutively without listing them.

    Attributes:
        order: (N,) the items, sorted so that an item's partners are a range of positions without an inner range.
        outer, inner: these ranges for each position, (N,) starts and (N,) ends.
        classes: (N,) the class of each item, if the pairs include positive pairs that must be discarded.
    """

    order: Tensor
    outer: Range
    inner: Range
    classes: Tensor | None = None

    def distances(self, embeddings: Tensor, pairs: int, generator: torch.Generator) -> tuple[Tensor, bool]:
        """Distances (P,) in float64, of all pairs (each once) or of a sample; and whether these are all pairs."""
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
            position = torch.searchsorted(ends, number, right=True)
            partner = self.outer[0][position] + number - starts[position]
            partner += torch.where(partner >= self.inner[0][position], skipped[position], 0)
            once = (position < partner) if exact else torch.ones_like(position, dtype=torch.bool)
            first, second = self.order[position[once]], self.order[partner[once]]
            if self.classes is not None:
                differ = self.classes[first] != self.classes[second]
                first, second = first[differ], second[differ]
            a, b = (embeddings[rows.to(embeddings.device)].detach().double() for rows in (first, second))
            parts.append((a - b).square_().sum(1).sqrt_().cpu())
        return torch.cat(parts), exact


def _positives(classes: Tensor) -> _Pairs:
    order = classes.argsort(stable=True)
    positions = torch.arange(len(order))
    return _Pairs(order, _runs(classes[order]), (positions, positions + 1))


def _negatives(classes: Tensor) -> _Pairs:
    order = classes.argsort(stable=True)
    return _Pairs(order, _all_positions(order), _runs(classes[order]))


def _negatives_within(clusters: Tensor, classes: Tensor) -> _Pairs:
    class_in_cluster = clusters * len(classes) + classes
    order = class_in_cluster.argsort(stable=True)
    return _Pairs(order, _runs(clusters[order]), _runs(class_in_cluster[order]))


def _negatives_across(clusters: Tensor, classes: Tensor) -> _Pairs:
    order = clusters.argsort(stable=True)
    return _Pairs(order, _all_positions(order), _runs(clusters[order]), classes)


def _all_positions(order: Tensor) -> Range:
    return torch.zeros_like(order), torch.full_like(order, len(order))


def _runs(values: Tensor) -> Range:
    """For each position, the start and the end of its run of equal values."""
    sizes = torch.unique_consecutive(values, return_counts=True)[1]
    ends = sizes.cumsum(0)
    return (ends - sizes).repeat_interleave(sizes), ends.repeat_interleave(sizes)


def _spectrum(embeddings: Tensor) -> Tensor:
    """Singular values divided by their sum, from the smaller Gram matrix in float64; rounding errors become 0."""
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
    bounded = spectrum.clamp(min=RESOLUTION * spectrum[0].item())
    return -(bounded * len(bounded)).log().mean().item()
