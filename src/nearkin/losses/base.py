"""The base class of all losses. Its arguments are those of pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from nearkin.losses.batch import Labels
from nearkin.losses.pairs import IndicesTuple, refuse_pairs


class Loss(nn.Module):
    """Base class of losses. Trainers, miners and wrappers of pytorch-metric-learning can call it.

    A subclass defines ``compute``. If its formula does not compare pairs, it sets ``without_pairs`` to the reason; if
    `graphed` cannot record it, ``without_graph``. ``changing`` are names of attributes, numbers that may change from
    batch to batch: a recorded loss reads them anew and sees them as tensors.
    """

    without_pairs: ClassVar[str] = ""
    without_graph: ClassVar[str] = ""
    changing: ClassVar[tuple[str, ...]] = ()
    compute: Callable[..., Tensor]  # takes embeddings and labels; also the pair arguments, unless without_pairs is set

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        **more: Any,
    ) -> Tensor:
        """Computes the loss of a batch.

        Args:
            embeddings: (batch, dim).
            labels: (batch,) integers, as a tensor, an array or a list.
            indices_tuple: the pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives,
                negatives) to compare, as a miner returns them; None compares all pairs.
            ref_emb: (references, dim) embeddings to compare the anchors with; None compares within the batch.
            ref_labels: (references,) the labels of ``ref_emb``.
            more: arguments of a particular loss: ``clusters`` (Magnet), ``positives`` (N-pairs).

        Returns:
            A scalar.
        """
        if self.without_pairs:
            refuse_pairs(self.without_pairs, indices_tuple, ref_emb, ref_labels)
            return self.compute(embeddings, labels, **more)
        pairs = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        return self.compute(embeddings, labels, **pairs, **more)
