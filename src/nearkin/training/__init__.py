"""Training: the loop, devices, precision, checkpoints, resuming."""

from nearkin.training.loop import resume, train
from nearkin.training.run import Run
from nearkin.training.settings import DataSettings, ModelSettings, Settings, TrainingSettings

__all__ = ["DataSettings", "ModelSettings", "Run", "Settings", "TrainingSettings", "resume", "train"]
