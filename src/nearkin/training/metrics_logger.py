"""What is measured on the way: one line of ``metrics.jsonl`` and TensorBoard scalars for each record."""

from __future__ import annotations

from typing import Any

from nearkin.training.run import Run


class MetricsLogger:
    """Writes records of a run; in processes other than the first it does nothing.

    Args:
        step: where the run stands; TensorBoard forgets what a killed process drew beyond it.
    """

    def __init__(self, run: Run, step: int, active: bool = True) -> None:
        self.run = run
        self.active = active
        if active:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1 if step else None)

    def add(self, record: dict[str, Any]) -> None:
        """Logs a record with ``kind`` and ``step``; its numbers become scalars."""
        if not self.active:
            return
        self.run.log(record)
        prefix = record.get("part", record["kind"])
        for name, value in record.items():
            if isinstance(value, float):
                self.board.add_scalar(f"{prefix}/{name}", value, record["step"])
        self.board.flush()

    def close(self) -> None:
        if self.active:
            self.board.close()
