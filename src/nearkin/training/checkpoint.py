"""The position of a run in training, and the checkpoint file that restores it."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from nearkin.errors import UserError
from nearkin.fields import checked_fields
from nearkin.files import write_bytes
from nearkin.models.weights import read_torch_file


@dataclass
class Position:
    """The next batch, and the state of the epoch and of the model selection.

    Attributes:
        epoch, batch: the next batch, counted from 0.
        step: number of steps so far.
        loss_sum: sum of the losses of this epoch so far.
        spread: spread of the latest batch's embeddings.
        best: best score on the monitored split.
        best_epoch: epoch of the best score; 0: before training.
        stale_evaluations: number of evaluations since the best score.
        records: number of lines in the run's metrics.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    spread: float = 1.0
    best: float = -math.inf
    best_epoch: int = 0
    stale_evaluations: int = 0
    records: int = 0

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / max(1, self.batch)


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def save_checkpoint(file: Path, position: Position, parts: dict[str, Stateful]) -> None:
    content = io.BytesIO()
    torch.save({"position": asdict(position), **{name: part.state_dict() for name, part in parts.items()}}, content)
    write_bytes(file, content.getbuffer())


def load_checkpoint(file: Path, parts: dict[str, Stateful], device: torch.device) -> Position:
    """Restores every part in place; never executes anything from the file."""
    try:
        state = read_torch_file(file, device, follow=False)
        position = _checked_position(state["position"])
        saved = {name: state[name] for name in parts}
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(f"checkpoint {file} cannot be read ({reason}); delete it to start the run again") from error
    for name, part in parts.items():
        try:
            _check_kinds(part.state_dict(), saved[name], name)
            part.load_state_dict(saved[name])
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"checkpoint {file} does not fit this {name} ({reason}); pass the objects that the run was started with"
            ) from error
    return position


def _checked_position(values: dict[str, Any]) -> Position:
    """Checks that every field is there with its type; only ``best`` may be infinite, before the first score."""
    missing = asdict(Position()).keys() - values.keys()
    if missing:
        raise ValueError(f"position: {min(missing)} is missing")
    known = {name: value for name, value in values.items() if name != "best" or value != -math.inf}
    position = Position(**checked_fields(Position, known, "position"))
    negative = [name for name, value in asdict(position).items() if type(value) is int and value < 0]
    if negative:
        raise ValueError(f"position: {negative[0]} must be >= 0")
    return position


def _check_kinds(now: Any, saved: Any, where: str) -> None:
    """Rejects a saved value of another type than the current one; a current None accepts any type."""
    kinds: list[type | tuple[type, ...]] = [dict, (list, tuple), Tensor, bool, (int, float)]
    if now is None or all(isinstance(now, kind) == isinstance(saved, kind) for kind in kinds):
        if isinstance(now, dict):
            for key in now.keys() & saved.keys():
                _check_kinds(now[key], saved[key], f"{where}.{key}")
        elif isinstance(now, list | tuple):
            for place, (one, other) in enumerate(zip(now, saved, strict=False)):
                _check_kinds(one, other, f"{where}.{place}")
        return
    raise ValueError(f"{where} must be a {type(now).__name__}, got a {type(saved).__name__}")
