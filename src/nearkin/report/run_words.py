"""How a run's model was chosen, in words."""

from __future__ import annotations

CHOICES = {
    "best-on-test": ("paper", "paper: the best point of the test curve, which is optimistic"),
    "best-on-validation": ("fair", "fair: models chosen on held-out training classes"),
    "last": ("fair", "fair: the model of the last epoch, nothing chosen by test scores"),
}


def choice(keep: str) -> tuple[str, str]:
    """The kind of protocol, "fair" or "paper", and the same in words."""
    return CHOICES.get(keep, CHOICES["last"])
