"""Where a run stands, and the one file that brings it back there."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from nearkin.errors import UserError
from nearkin.files import open_regular, write_bytes


@dataclass
class Position:
    """The next batch, and what the epoch and the choice of the model have to remember.

    Attributes:
        epoch, batch: the next batch to take, counted from 0.
        step: batches taken so far.
        loss_sum: of the epoch's batches so far.
        spread: of the latest batch's embeddings.
        best: the best score on the watched split, and ``best_epoch``, after how many epochs; 0: before the first.
        stale_evaluations: how many evaluations did not improve on it.
        records: lines in the run's metrics.
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
    """Restores every part in place; nothing in the file is ever executed."""
    try:
        with open_regular(file, follow=False) as opened:
            state = torch.load(opened, map_location=device, weights_only=True)
        position = Position(**state["position"])
        saved = {name: state[name] for name in parts}
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"checkpoint {file} cannot be read ({reason}); remove it to start the run over") from error
    for name, part in parts.items():
        try:
            part.load_state_dict(saved[name])
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"checkpoint {file} is of another {name} ({reason}); pass the objects that the run was begun with"
            ) from error
    return position
