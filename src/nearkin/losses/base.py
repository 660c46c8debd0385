"""The module of a loss: settings, and a call with the arguments of pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from nearkin.losses.batch import Labels
from nearkin.losses.pairs import IndicesTuple, refuse_pairs


class Loss(nn.Module):
    """A loss that trainers, miners, memories and wrappers of pytorch-metric-learning can call.

    A subclass defines ``compute``; one whose formula compares no pairs says why in ``without_pairs``.
    """

    without_pairs: ClassVar[str] = ""
    compute: Callable[..., Tensor]  # of embeddings and labels, and of the arguments about pairs unless without_pairs

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        **more: Any,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: (batch, dim).
            labels: (batch,) whole numbers: a tensor, an array or a list.
            indices_tuple: the pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives,
                negatives) to compare, as a miner gives them; all pairs if None.
            ref_emb, ref_labels: (references, dim) and (references,) what the anchors are compared with; the batch
                itself if None.
            more: what else a loss reads: ``clusters`` (Magnet), ``positives`` (N-pairs).

        Returns:
            A scalar.
        """
        if self.without_pairs:
            refuse_pairs(self.without_pairs, indices_tuple, ref_emb, ref_labels)
            return self.compute(embeddings, labels, **more)
        pairs = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        return self.compute(embeddings, labels, **pairs, **more)
