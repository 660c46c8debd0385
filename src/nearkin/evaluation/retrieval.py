"""Retrieval: the ranks of the positives of every query, in one pass over blocks of the distance matrix.

Memory is bounded by a few blocks of 64 MB, whatever the size of the space. Ranks are exact, ties included: of
equal distances the lowest gallery row is the nearer one. Distances are those of `clustering.distances`: computed
in float32 around the middle of the space, because far from the origin near neighbours would be lost in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nearkin.evaluation.ranks import (
    recall_at,
)

FEW_POSITIVES = 8  # up to here counting beats sorting, for galleries of 6,000 to 60,000


@dataclass(frozen=True, eq=False)
class Retrieval:
    """What every query found, in the order of ``space.queries``; see `nearkin.evaluation.ranks` for the scores.

    Attributes:
        positives: (Q,) gallery items of the query's class, itself left out.
        first_rank: (Q,) rank of the nearest positive; 0 where there is none.
        r_precision, average_precision_at_r, average_precision: (Q,) in float64; NaN where there is none.
        neighbours: (Q, kept) rows of the space, the nearest gallery items.
    """

    positives: Tensor
    first_rank: Tensor
    r_precision: Tensor
    average_precision_at_r: Tensor
    average_precision: Tensor
    neighbours: Tensor

    def scores(self, recall_at_ks: tuple[int, ...] = (1, 2, 4, 8)) -> dict[str, float]:
        """The means over all queries that have a positive, and how many have (not)."""
        found = self.positives > 0
        return {
            **{f"recall@{k}": recall_at(self.first_rank, k) for k in recall_at_ks},
            "r_precision": self.r_precision[found].mean().item(),
            "map@r": self.average_precision_at_r[found].mean().item(),
            "map": self.average_precision[found].mean().item(),
            "queries": float(found.sum()),
            "queries_without_positives": float((~found).sum()),
        }


def retrieve(space: Space, kept_neighbours: int = 10, block_bytes: int = BLOCK_BYTES) -> Retrieval:
    """Ranks the gallery for every query of a space; an item is never its own neighbour.

    Args:
        space: embeddings with labels; its queries search its gallery.
        kept_neighbours: how many nearest gallery items to keep per query (fewer where the gallery is smaller).
        block_bytes: size of the block of distances that is held at a time.

    >>> line = Space.of(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), torch.tensor([0, 0, 1, 0]))
    >>> found = retrieve(line, kept_neighbours=2)
    >>> found.first_rank.tolist(), found.neighbours.tolist()
    ([1, 1, 0, 2], [[1, 2], [0, 2], [3, 1], [2, 1]])
    """
    device = space.embeddings.device
    queries, gallery = space.queries.to(device), space.gallery.to(device)
    own = torch.full((len(space),), -1, device=device)
    own[gallery] = torch.arange(len(gallery), device=device)
    own = own[queries]  # (Q,) the query's own gallery row, or -1
    positives = _Positives(space.labels.to(device), queries, gallery, own)
    if not bool(positives.counts.any()):
        raise UserError(
            "no query has another item of its class in the gallery, so nothing can be retrieved; "
            "evaluate classes with at least two items, or check the labels and the query/gallery split"
        )
    kept = max(0, min(kept_neighbours, len(gallery) - int((own >= 0).any())))
    near_queries, near_gallery, _ = near_origin(space.embeddings[queries], space.embeddings[gallery])
    squared_distances = SquaredDistances(near_gallery)
    rank = _rank_by_sorting if space.embeddings.is_cuda else _rank_by_counting
    parts = []
    for rows in track(row_blocks(len(queries), len(gallery), block_bytes), "ranking"):
        block = squared_distances(near_queries[rows])
        block[own[rows] >= 0, own[rows][own[rows] >= 0]] = torch.inf
        query, column = positives.pairs(rows)
        ranks, nearest = rank(block, query, column, kept)
        ordered = (query * (len(gallery) + 1) + ranks).sort().values % (len(gallery) + 1)
        found = PositiveRanks(ordered, query, positives.counts[rows])
        parts.append(
            (
                found.positives,
                first_rank(found),
                r_precision(found),
                average_precision_at_r(found),
                average_precision(found),
                gallery[nearest],
            )
        )
    return Retrieval(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _Positives:
    """Which gallery rows are the positives of a query: its class, itself left out."""

    def __init__(self, labels: Tensor, queries: Tensor, gallery: Tensor, own: Tensor) -> None:
        classes = labels.unique(return_inverse=True)[1]
        sizes = torch.bincount(classes[gallery], minlength=int(classes.max()) + 1)
        self._own = own
        self._members = classes[gallery].sort(stable=True).indices  # gallery rows, class by class
        self._sizes = sizes[classes[queries]]
        self._starts = (sizes.cumsum(0) - sizes)[classes[queries]]
        self.counts = self._sizes - (own >= 0).long()  # (Q,)

    def pairs(self, rows: slice) -> tuple[Tensor, Tensor]:
        """(P,) number of the query within the rows, ascending, and (P,) gallery row, of each positive."""
        sizes, starts = self._sizes[rows], self._starts[rows]
        query = torch.repeat_interleave(sizes)
        within = torch.arange(len(query), device=query.device) - (sizes.cumsum(0) - sizes)[query]
        column = self._members[starts[query] + within]
        others = column != self._own[rows][query]
        return query[others], column[others]


def _rank_by_sorting(block: Tensor, query: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """(P,) ranks of the positives and (rows, kept) nearest columns, from a stable sort of every row."""
    order = block.argsort(dim=1, stable=True)
    places = torch.arange(1, block.shape[1] + 1, device=block.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return ranks[query, column], order[:, :kept]


def _rank_by_counting(block: Tensor, query: Tensor, column: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The same without sorting (rows, columns) as a whole, for the CPU.

    Few positives: counts what lies before each, a fifth of the work of sorting. Many: sorts a row as one integer
    per item, the bits of its distance above its column. numpy, because its comparisons and sorts are vectorised
    and let go of the interpreter: torch takes ten times as long.
    """
    ends = torch.bincount(query, minlength=len(block)).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    ranks = np.empty(len(query), dtype=np.int64)
    nearest = np.empty((len(block), kept), dtype=np.int64)
    distances, columns = block.numpy(), column.numpy()
    indices = np.arange(block.shape[1])

    def rank_row(i: int) -> None:
        here = slice(starts[i], ends[i])
        few = ends[i] - starts[i] <= FEW_POSITIVES
        ranks[here], nearest[i] = (_count if few else _sort)(distances[i], columns[here], indices, kept)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(rank_row, range(len(block))))
    return torch.from_numpy(ranks), torch.from_numpy(nearest)


Row = NDArray[np.float32]
Columns = NDArray[np.int64]


def _count(row: Row, positives: Columns, indices: Columns, kept: int) -> tuple[Columns, Columns]:
    ranks = [
        1 + np.count_nonzero(row[:c] <= row[c]) + np.count_nonzero(row[c + 1 :] < row[c]) for c in positives.tolist()
    ]
    candidates = np.flatnonzero(row <= np.partition(row, kept - 1)[kept - 1]) if kept else indices[:0]
    nearest = candidates[np.argsort(row[candidates], kind="stable")][:kept]
    return np.array(ranks, dtype=np.int64), nearest


def _sort(row: Row, positives: Columns, indices: Columns, kept: int) -> tuple[Columns, Columns]:
    keys = (row.view(np.int32).astype(np.int64) << 32) | indices  # distances are never negative: bits keep order
    wanted = keys[positives]
    keys.sort()
    return 1 + np.searchsorted(keys, wanted), keys[:kept] & 0xFFFFFFFF
