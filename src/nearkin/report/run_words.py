"""The words of a run's report: how its model was chosen."""

from __future__ import annotations

from nearkin.compare.result import IN_WORDS

CHOICES = {
    "best-on-test": ("paper", IN_WORDS["paper"]),
    "best-on-validation": ("fair", IN_WORDS["fair"]),
    "last": ("fair", "fair: the model of the last epoch, nothing chosen by test scores"),
}


def choice(keep: str) -> tuple[str, str]:
    """The kind of protocol, "fair" or "paper", and the same in words."""
    return CHOICES.get(keep, CHOICES["last"])
