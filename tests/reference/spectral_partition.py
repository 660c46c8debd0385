"""Lines 1–4 of Algorithm 2 (Law et al. 2017) by numpy's SVD."""

from __future__ import annotations

import numpy as np


def spectral_embedding(x, rank):
    centred = x.astype(np.float64) - x.astype(np.float64).mean(0)
    left = np.linalg.svd(centred, full_matrices=False)[0][:, :rank]
    lengths = np.sqrt((left**2).sum(1, keepdims=True))
    return np.divide(left, lengths, out=np.zeros_like(left), where=lengths > 1e-12)
