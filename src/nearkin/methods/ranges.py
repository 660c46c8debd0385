"""The ranges that tuning searches for a method's settings. Each method declares its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Between:
    """A number from ``low`` to ``high``; with ``log``, uniform on a logarithmic scale.

    >>> 0.2 in Between(0.05, 1.0, log=True)
    True
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class OneOf:
    """One of several values.

    >>> 3 in OneOf((2, 4, 8))
    False
    """

    values: tuple[int | float | str | bool, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values


Range = Between | OneOf
