"""The training loop, the same for all methods.

A run is at a `Position`. Every random choice in a step follows from (seed, position), so a run that is stopped anywhere
and resumed from its checkpoint takes exactly the same steps as one that never stopped.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.data import Dataset, ImageFiles, Splits
from nearkin.data.items import Indices
from nearkin.data.loader import Draw, input_batches, keep_workers, to_device
from nearkin.data.summary import counted
from nearkin.errors import Interrupted, UserError
from nearkin.evaluation import describe, evaluate
from nearkin.losses.batch import unchecked
from nearkin.messages import REPEATED
from nearkin.methods import Batch, Method
from nearkin.methods.base import recordable_losses
from nearkin.models import EmbeddingModel
from nearkin.models.model import Head
from nearkin.progress import Advance, bar
from nearkin.sampling import share_of
from nearkin.space import Space
from nearkin.training import optimise
from nearkin.training.baseline import unit_space
from nearkin.training.batch_norm import estimate_statistics, learning_norms, random_draws
from nearkin.training.card import write_card
from nearkin.training.checkpoint import Position, Stateful, load_checkpoint
from nearkin.training.compiling import check_compile, compile_backbone, recorded_losses, should_compile
from nearkin.training.decode import hold_decoded
from nearkin.training.defaults import is_pretrained, resolved, with_warmup
from nearkin.training.devices import (
    device_and_precision,
    embed_dataset,
    gathered,
    make_fabric,
    seed_device,
)
from nearkin.training.metrics_logger import MetricsLogger, check_loggers
from nearkin.training.microbatch import micro_batched
from nearkin.training.model_selection import (
    PRIMARY,
    check_choice,
    check_keep,
    check_measurable,
    choice_in_words,
    held_out_splits,
    monitored_split,
)
from nearkin.training.monitoring import COLLAPSED, READ_EVERY, StepMonitor, collapse_advice, stop_requests
from nearkin.training.objects import Callback, Objects
from nearkin.training.prepare import build_model, check_model, load_splits
from nearkin.training.run import MemoryRun, Run
from nearkin.training.settings import Settings
from nearkin.training.shared import DatasetSplits
from nearkin.training.split_evaluator import SplitEvaluator
from nearkin.training.start import start_from_features
from nearkin.training.summary import describe_data, describe_training
from nearkin.training.verdict import advice, final_scores

log = logging.getLogger("nearkin")
MANY_EPOCHS = 100  # with more, only epochs with an evaluation are reported


def train(settings: Settings, folder: str | Path | Run, tested: bool = True, **objects: Unpack[Objects]) -> Run:
    """Trains a new run into ``folder``; with ``tested=False`` it never uses the test split."""
    run = folder if isinstance(folder, Run) else Run(folder)
    try:
        trainer = make_trainer(settings, run, tested=tested, **objects)
    except KeyboardInterrupt:
        if isinstance(run, MemoryRun):
            raise
        raise Interrupted("stopped before the first step; run it again") from None  # the folder may be another run's
    return trainer.train()


def resume(
    folder: str | Path,
    tested: bool = True,
    epochs: int | None = None,
    stop_after: int | None = None,
    **objects: Unpack[Objects],
) -> Run:
    """Continues a run from its last checkpoint; the weights end up as if it had never stopped.

    Args:
        epochs: a new number of epochs; the learning rates continue as if the run had started with it.
        stop_after: a new epoch to stop after; the learning rates stay those of all epochs.
    """
    run = Run.open(folder)
    settings = run.settings()
    if method := objects.get("method"):
        check_same_method(method, settings)
    if epochs is None:
        later = stop_after not in (None, settings.training.stop_after)
        settings = settings.changed(training={"stop_after": stop_after}) if later else settings
        trainer = make_trainer(settings, run, resumed=True, tested=tested, **objects)
        if later:
            run.change_settings(settings)
        return trainer.train()
    begun = run.checkpoint_file.is_file()
    done = load_checkpoint(run.checkpoint_file, {}, torch.device("cpu")).epoch if begun else 0
    if epochs <= done:  # before the trainer opens the run's files
        raise UserError(f"{folder} has already trained for {counted(done, 'epoch')}; use epochs={done + 1} or more")
    settings = settings.changed(training={"epochs": epochs, "stop_after": 0})
    trainer = make_trainer(settings, run, resumed=True, tested=tested, **objects)
    trainer.position.stale_evaluations = 0
    run.change_settings(settings)
    return trainer.train()


def check_same_method(method: Method, settings: Settings) -> None:
    """Raises if the method or loss is not the one that the run was started with."""
    begun, given = ({"name": settings.method, **settings.method_settings}, {"name": method.name, **method.settings()})
    for name, value in begun.items():
        if given.get(name) != value:
            raise UserError(
                f"the run was started with another method or loss ({name} was {value}, got {given.get(name)}); "
                "pass the same one, or start a new run"
            )


def make_trainer(
    settings: Settings, run: Run, resumed: bool = False, tested: bool = True, **objects: Unpack[Objects]
) -> Trainer:
    """Makes a trainer from settings, and from objects that replace some of them."""
    optimise.check(settings.training)
    check_keep(settings.training.keep)
    check_loggers(settings.training.logger)
    check_compile(settings.training)
    device_and_precision(settings.training)
    torch.manual_seed(settings.training.seed)  # before any weights are made
    method = settings.make_method(objects.get("method"))
    if not resumed:
        run.check_free()
    check_model(settings.model)
    run.dataset = objects.get("dataset")
    splits = load_splits(settings.data, settings.training.seed, run.dataset)
    backbone = run.backbone = objects.get("backbone")
    method.check_labels(splits.train.dense_labels)
    settings = resolved(settings, splits, method, backbone)
    # Before weights are loaded.
    held_out = held_out_splits(splits, tested)
    check_measurable(held_out)
    check_choice(settings.training, held_out)
    labels, batch_size = splits.train.dense_labels, settings.training.batch_size
    if settings.model.dim:  # without a head, the backbone says how many there are
        method.check(labels, settings.model.dim, batch_size, settings.model.normalize)
    method.sampler(labels, batch_size, settings.training.seed)  # raises if it cannot fill a batch
    model = build_model(settings, splits.train, method.slices, backbone)
    others = objects.get("callbacks", ()), objects.get("trial")
    return Trainer(splits, method, model, settings, run, resumed, tested, *others)


class Trainer:
    """Trains a model: steps, evaluations, checkpoints.

    Args:
        splits: the data.
        method: the loss and the batches.
        model: the model to train.
        settings: with all defaults filled in; written to the run.
        run: where results are written.
        resumed: whether to continue from the run's checkpoint.
        tested: whether to evaluate the test split.
        callbacks: functions called after every epoch.
        trial: a run with the same settings that never used the test split; this run takes over its training.
    """

    def __init__(
        self,
        splits: Splits,
        method: Method,
        model: EmbeddingModel,
        settings: Settings,
        run: Run,
        resumed: bool = False,
        tested: bool = True,
        callbacks: Sequence[Callback] = (),
        trial: Run | None = None,
    ) -> None:
        self.method, self.model, self.settings, self.run = method, model, settings, run
        self.callbacks, self.trial = callbacks, trial
        self.fabric = make_fabric(settings.training, method.slices)
        self.held_out = held_out_splits(splits, tested)
        self.tested = tested
        self.training = settings.training
        self.last_epoch = min(self.training.stop_after or self.training.epochs, self.training.epochs)
        enough = 256 if self.fabric.device.type == "cuda" else 1  # images without gradient that keep a device busy
        self.embed_batch = self.training.micro_batch or max(self.training.batch_size, enough)
        self.workers = self.settings.data.processes
        self.train_set, self.labels = splits.train, splits.train.dense_labels
        self.monitored = monitored_split(self.training, self.held_out)
        spec = self.model.spec
        self.method.check(self.labels, spec.dim, self.training.batch_size, spec.normalize)
        self.method.prepare(int(self.labels.max()) + 1, spec.dim, self.training.epochs)
        self.sampler = self.method.sampler(self.labels, self.training.batch_size, self.training.seed)
        self.settings = with_warmup(self.settings, len(self.sampler))
        self.training = self.settings.training
        share_of(np.arange(self.training.batch_size), 0, self.fabric.world_size)  # raises if it cannot be shared evenly
        if self.fabric.is_global_zero and not resumed:  # before any slow step
            log.info(describe_data(splits, self.settings.data), extra=REPEATED)
            log.info(describe_training(self.settings, self.fabric, len(self.sampler)))

        self._check_trainable()
        begun = resumed and self.run.checkpoint_file.is_file()
        wanted = self.settings.model.head_init == "svd" or any(self.held_out.values())
        self.start = self._start() if wanted and is_pretrained(self.settings.model) and not begun else None
        self.compiled = False  # whether the backbone is
        self.learner, self.preprocess = self._learner()
        self.model.to(self.fabric.device)  # before the optimiser: on CUDA, it is fused
        rates = self.training
        groups: dict[str, tuple[nn.Module, float]] = {
            "backbone": (self.model.backbone, rates.backbone_learning_rate),
            "head": (self.model.head, rates.learning_rate),
            "loss": (self.method.loss.to(self.fabric.device), rates.loss_learning_rate),
        }
        share = self.training.batch_size // self.fabric.world_size
        embedding = micro_batched(self.learner, self.training.micro_batch, share)
        self.wrapped, self.optimizer = self.fabric.setup(embedding, optimise.make_optimizer(groups, self.training))
        self.position = Position()
        self.monitor = StepMonitor(self.fabric.device)
        self.estimated_at = -1  # the step after which batch norm's statistics were estimated
        self.saved = False  # whether the run has the current weights
        self.evaluator = SplitEvaluator(self.fabric, self.method)
        if resumed:
            self.run.check_data(splits.digest())
            _ = self.run.metrics  # raises now if they are damaged
            if begun:
                self.position = load_checkpoint(self.run.checkpoint_file, self._stateful(), self.fabric.device)
        elif self.fabric.is_global_zero:
            self.run.create(self.settings, splits.digest())
        if self.fabric.world_size > 1:  # one process chose the folder of a new run
            self.run.move_to(self.fabric.broadcast(self.run.folder))
        # A fused optimiser skips failed steps by itself, so the host may learn of them later.
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        self.read_every = READ_EVERY if fused else 1
        self.metrics = MetricsLogger(self.run, self.settings, self.position, active=self.fabric.is_global_zero)

    @keep_workers()
    def train(self) -> Run:
        status = "failed"
        undo = ExitStack()  # the backbone and the loss may be the user's own modules
        try:
            self._compile(undo)
            if self.position.records == 0:
                self._measure_start()
                if self.trial:
                    self._take_over(self.trial)
            total = self.last_epoch * len(self.sampler)
            with stop_requests() as stop_requested, bar("training", total, done=self.position.step) as advance:
                while self.position.epoch < self.last_epoch and not self._out_of_patience():
                    self._epoch(stop_requested, advance)
                    self._save_or_stop(stop_requested())
            if self._out_of_patience():
                log.info("stopped early: %d evaluations without improvement", self.training.patience)
            self._finish()
            status = "success"
        except KeyboardInterrupt:  # outside of a step, or the second one in a step
            raise self.run.stopped() from None
        finally:
            with undo:
                self.metrics.close(status)  # another run in this process opens its own
        return self.run

    def _start(self) -> DatasetSplits:
        """The splits as features of the pretrained backbone: the head starts from them, and they are the baseline."""
        self.model.to(self.fabric.device)
        return start_from_features(self.model, self.train_set, self.held_out, self.settings, self.embed_batch)

    def _measure_start(self) -> None:
        """Evaluates the backbone alone, if pretrained, and the model before its first step, which may be the best."""
        chooses = self.training.keep == "best-on-validation"
        for split in ["validation", "test"] if chooses else ["test"]:
            if self.start and (features := self.start[split]):
                space = unit_space(features, self.fabric.device)
                clustering = "kmeans" if split == "test" else None
                scores = evaluate(space, clustering=clustering).scores if self.fabric.is_global_zero else {}
                self._log("backbone", split=split, **scores)
            if self.training.evaluate_every:
                scores = self._measure(split, "before", self.start)
                if split == "validation":
                    self.position.best = scores[PRIMARY]
                    self._save_model()
        self.start = None

    def _take_over(self, trial: Run) -> None:
        """Copies the records, the kept model and the checkpoint of a run that differs only in never being tested."""
        for record in trial.metrics:
            if record["kind"] in ("training", "evaluation"):
                self.position.records += 1
                self.metrics.add(record)
        trial.restore_model(self.model)
        self.method.buffers = trial.read_buffers()
        self._save_model()
        records = self.position.records
        position = load_checkpoint(trial.checkpoint_file, self._stateful(), self.fabric.device)
        self.position, self.saved = replace(position, records=records), False
        self._save_checkpoint()

    def _check_trainable(self) -> None:
        frozen = self.settings.model.freeze_backbone or next(self.model.backbone.parameters(), None) is None
        if frozen and not self.model.head.project:
            raise UserError(
                "there is nothing to train: the backbone is frozen and there is no head; add a head with dim=512, or "
                "use the backbone without training: `nearkin index NAME PHOTOS`"
            )

    def _learner(self) -> tuple[EmbeddingModel | Head, Any]:
        """The module to train and its preprocessing: the model, or only its head on features computed once."""
        if not self.settings.model.freeze_backbone:
            if self.fabric.world_size > 1 and self.fabric.device.type == "cuda":
                nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
            if self.settings.data.keep_decoded:
                where = (self.model.spec.preprocess, self.fabric.device, self.workers)
                self.train_set, self.held_out = hold_decoded(self.train_set, self.held_out, *where)
            return self.model, self.model.spec.preprocess
        self.model.backbone.requires_grad_(False)
        self.model.to(self.fabric.device)
        start = self.start or self._start()  # a checkpoint replaces the head later
        self.held_out = {name: start[name] for name in self.held_out}
        assert start["train"] is not None
        self.train_set = start["train"]
        return self.model.head, None

    def _compile(self, undo: ExitStack) -> None:
        """Compiles the backbone if that pays, and records losses on one GPU."""
        device, alone = self.fabric.device, self.fabric.world_size == 1
        if alone and self.read_every > 1:  # else the loss checks every batch, which a graph cannot
            losses = recordable_losses(self.method, self.model.spec.dim)
            undo.enter_context(recorded_losses(losses, self.training.batch_size, device))
        steps = self.last_epoch * len(self.sampler)
        if self.learner is self.model and should_compile(self.training, self.model.spec, steps, device):
            graph = alone and self.training.micro_batch == 0 and device.type == "cuda"
            undo.callback(compile_backbone(self.model, graph))
            self.compiled = True

    def _epoch(self, stop_requested: Callable[[], bool], advance: Advance) -> None:
        self.saved = False
        self.evaluator.clear()
        self.learner.train()
        self.method.start_epoch(self.position.epoch)
        self.monitor, note = StepMonitor(self.fabric.device, self.position.loss_sum), ""
        started, first, self.refresh_seconds = time.monotonic(), self.position.batch, 0.0
        for batch in self._batches():
            self._step(batch)
            if self._reads():
                note = f"epoch {self.position.epoch + 1}, loss {self.position.mean_loss:.4f}"
            advance(note=note)
            self._save_or_stop(stop_requested())
        self._read_monitor()
        self.seconds = seconds = time.monotonic() - started
        loss = self.position.mean_loss
        self.position = replace(self.position, epoch=self.position.epoch + 1, batch=0, loss_sum=0.0)
        self._log(
            "training",
            loss=loss,
            learning_rate=self.optimizer.param_groups[-1]["lr"],
            spread=self.position.spread,
            items_per_second=round((len(self.sampler) - first) * self.sampler.batch_size / seconds, 1),
            refresh_share=round(self.refresh_seconds / seconds, 4),
            **self.method.record(),
        )
        if self.position.spread < COLLAPSED:
            log.warning(collapse_advice(self.position.spread))
        self._estimate_batch_norm()
        scores = self._choose_model(loss)
        self._save_checkpoint()
        for callback in self.callbacks:
            callback(self.run, {"epoch": self.position.epoch, "loss": loss, **scores})

    def _batches(self) -> Iterator[Batch]:
        """The remaining batches of the epoch; read ahead only up to the method's next refresh."""
        while (start := self.position.batch) < len(self.sampler):
            if self._refresh_due(start):
                self._refresh()
            upcoming = range(start + 1, len(self.sampler))
            until = next((batch for batch in upcoming if self._refresh_due(batch)), len(self.sampler))
            drawn: deque[Indices] = deque()
            draws = self._draws(start, until, drawn)
            augment, pin = self.settings.data.augment, self.fabric.device.type == "cuda"
            for share in input_batches(self.train_set.items, self.preprocess, draws, augment, self.workers, pin):
                items = drawn.popleft()
                labels = torch.from_numpy(self.labels[items])
                inputs, labels = (to_device(column, self.fabric.device) for column in (share, labels))
                yield Batch(inputs, labels, torch.from_numpy(items), self.position.step)

    def _refresh(self) -> None:
        """Embeds the training split with the current model and passes it to the method, with the labels of batches."""
        started = time.monotonic()
        self._estimate_batch_norm()
        space = self._space(self.train_set, fast=True, head=self.method.refresh_on == "embeddings")
        self.method.on_refresh(replace(space, labels=torch.from_numpy(self.labels).to(space.labels.device)))
        if self.fabric.world_size > 1:  # GPU sums may differ in the last digit between processes
            for stateful in (self.method, self.sampler):
                state = self.fabric.broadcast(stateful.state_dict())  # tensors on the first process's GPU
                stateful.load_state_dict(self.fabric.to_device(state))
        self.refresh_seconds += time.monotonic() - started

    def _estimate_batch_norm(self) -> None:
        """Estimates batch norm's statistics from random items, if the method's batches are not a sample of the data."""
        if self.method.representative_batches or self.learner is not self.model:
            return
        if self.estimated_at == self.position.step:  # a refresh follows the end of an epoch
            return
        if not (norms := learning_norms(self.model)):
            return
        # Every process uses the same items, which depend only on the position.
        batch_size = self.training.micro_batch or self.training.batch_size // self.fabric.world_size
        draws = random_draws(len(self.train_set), batch_size, (self.training.seed, self.position.step))
        augment, pin = self.settings.data.augment, self.fabric.device.type == "cuda"
        inputs = input_batches(self.train_set.items, self.preprocess, draws, augment, self.workers, pin)
        eager = torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()
        with eager, self.fabric.autocast():
            estimate_statistics(self.model, norms, (to_device(batch, self.fabric.device) for batch in inputs))
        self.estimated_at = self.position.step

    def _step(self, batch: Batch) -> None:
        seed_device(self.fabric.device, self._seed(self.position.batch) + 1 + self.fabric.global_rank)  # dropout
        place = (self.position.step, len(self.sampler))
        optimise.set_rates(self.optimizer, optimise.rate_factor(*place, self.training, self.method.phases))
        self.optimizer.zero_grad()  # before the forward pass, whose CUDA graph reuses the memory of gradients
        with unchecked() if self.read_every > 1 else nullcontext():
            loss = self.method.step(self._embed, batch)
        self.fabric.backward(loss)
        self.monitor.add(loss, self._gradient_norm(), self.position.step)
        self.position.step += 1
        self.position.batch += 1
        if self._reads():  # before the weights change
            self._read_monitor()
        if self.read_every > 1:
            self.optimizer.optimizer.found_inf = self.monitor.failed
        self.optimizer.step()

    def _reads(self) -> bool:
        """Whether the losses are read after this step; until then, nothing waits for the GPU."""
        return self.position.step % self.read_every == 0

    def _read_monitor(self) -> None:
        if self.monitor.embeddings is not None:  # the rest of an epoch may have no steps
            self.position.loss_sum, self.position.spread = self.monitor.read()

    def _gradient_norm(self) -> Tensor:
        """The norm of the whole gradient, which is then clipped to ``clip_norm``."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        if self.training.clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.training.clip_norm, norm)
        return norm

    def _embed(self, inputs: Tensor, learner: int | None = None) -> Tensor:
        embeddings = gathered(self.fabric, self.wrapped(inputs, learner))
        self.monitor.embeddings = embeddings.detach().clone()  # a CUDA graph reuses its outputs
        seed_device(self.fabric.device, self._seed(self.position.batch))  # the loss draws the same in all processes
        return embeddings

    def _draws(self, start: int, until: int, drawn: deque[Indices]) -> Iterator[Draw]:
        """What to read for batches ``start`` to ``until``; also appends the items of each batch to ``drawn``."""
        self.sampler.epoch, self.sampler.position = self.position.epoch, start
        rank, processes = self.fabric.global_rank, self.fabric.world_size
        for batch, items in enumerate(islice(self.sampler, until - start), start):
            drawn.append(np.asarray(items))
            share = share_of(drawn[-1], rank, processes)
            yield Draw(share, self._seed(batch), place=rank * len(share))

    def _seed(self, batch: int) -> int:
        """The random seed of one batch of the current epoch."""
        entropy = np.random.SeedSequence((self.training.seed, self.position.epoch, batch))
        return int(entropy.generate_state(1, np.uint64)[0] >> 2)

    def _refresh_due(self, batch: int) -> bool:
        step = self.position.step - self.position.batch + batch
        return self.method.refresh_every is not None and self.method.refresh_every.due(self.position.epoch, batch, step)

    def _space(
        self, dataset: Dataset, as_features: bool = False, final: bool = False, fast: bool = False, head: bool = True
    ) -> Space:
        """Embeds a dataset with the current model.

        ``fast``: as compiled, and in the precision of training. ``head``: False for the backbone's features.
        """
        files = isinstance(dataset.items, ImageFiles) and self.learner is self.model
        kept = final and files and self.fabric.world_size == 1  # `evaluate` and `report` need the same again
        learner = self.model.head if as_features else self.learner
        eager = self.compiled and not fast  # in full precision, it would be compiled once more
        with torch.compiler.set_stance("force_eager") if eager else nullcontext():
            return embed_dataset(self.fabric, learner, dataset, self.embed_batch, self.workers, kept, not fast, head)

    def _measure(self, split: str, kind: str, start: DatasetSplits | None = None) -> dict[str, float]:
        """Evaluates a split and logs the scores; none if there is no such split. Skips clustering during training.

        ``start``: the splits as features of the still untrained backbone.
        """
        splits = start or {"train": self.train_set, **self.held_out}
        dataset, train = splits[split], splits["train"]
        if dataset is None or train is None:
            return {}
        embed = partial(self._space, as_features=start is not None, final=kind == "final")
        clustering = "kmeans" if split == "test" and kind != "evaluation" else None
        scores = self.evaluator.scores(split, dataset, train, embed, clustering)
        self._log(kind, split=split, **scores)
        return scores

    def _choose_model(self, loss: float) -> dict[str, float]:
        """Evaluates if it is due, and saves the model if it is the one to keep; returns the scores."""
        last = self.position.epoch == self.last_epoch
        every = self.training.evaluate_every
        line = f"epoch {self.position.epoch}/{self.training.epochs}: loss {loss:.4f}"
        evaluated = bool(every) and (last or self.position.epoch % every == 0)
        scores = self._measure(self.monitored, "evaluation") if evaluated else {}
        if scores:
            line += f", {self.monitored} {describe(PRIMARY).title} {scores[PRIMARY]:.4f}"
        if scores or self.training.epochs <= MANY_EPOCHS:
            log.info("%s, %.0f s", line, self.seconds)
        if evaluated:
            score = scores.get(PRIMARY, -math.inf)
            if self.training.keep != "last":
                if score > self.position.best:
                    now = self.position.epoch
                    self.position = replace(self.position, best=score, best_epoch=now, stale_evaluations=0)
                    self._save_model()
                else:
                    self.position.stale_evaluations += 1
        if self.training.keep == "last":
            self._save_model()
        return scores

    def _out_of_patience(self) -> bool:
        return 0 < self.training.patience <= self.position.stale_evaluations

    def _finish(self) -> None:
        if not self.run.has_model() or (self.training.keep == "last" and not self.saved):
            self._save_model()
        self.fabric.barrier()
        self.run.restore_model(self.model)
        self.method.buffers = self.run.read_buffers()
        if not self.saved or self.fabric.world_size > 1:  # processes may differ in batch norm
            self.evaluator.clear()
        after = self._measure("test", "final")
        if self.fabric.is_global_zero:
            chosen = choice_in_words(self.training, self.monitored)
            kept = self.position.epoch if self.training.keep == "last" else self.position.best_epoch
            # A trial of a search needs no advice on its settings.
            start, ideas = self._start_in_words(), advice(self.settings.model, self.model.spec.preprocess is None)
            scores = final_scores(self.run.metrics, after, chosen, kept, start, ideas, warn=self.tested)
            self.run.write_scores(scores)
            splits = {"train": self.train_set, **self.held_out}
            if not isinstance(self.run, MemoryRun):
                write_card(self.run, self.model.spec, self.settings, splits, scores)
        self.fabric.barrier()  # no process reads the scores before they are written

    def _start_in_words(self) -> str:
        """What a model on a pretrained backbone is before its first step."""
        if not self.model.head.project:
            return "the backbone without a head"
        if self.settings.model.head_init == "random":
            return "the backbone with an untrained head"
        return f"the backbone's features projected to {self.model.spec.dim} dimensions"

    def _save_or_stop(self, stop_requested: bool) -> None:
        in_epoch = self.position.batch > 0
        if self.fabric.world_size > 1:  # processes get the signal at different times and must stop together
            if in_epoch and not self._reads():
                stop_requested = False  # asking would wait for the GPU
            else:
                flag = torch.tensor(float(stop_requested), device=self.fabric.device)
                stop_requested = bool(self.fabric.all_reduce(flag, reduce_op="sum"))
        every = self.training.checkpoint_steps
        if stop_requested or (every and self.position.step % every == 0):
            if in_epoch:
                self._read_monitor()
            self._save_checkpoint()
        if stop_requested:
            raise self.run.stopped(self.position.step)

    def _save_model(self) -> None:
        self.saved = True
        if self.fabric.is_global_zero:
            self.run.save_model(self.model, self.method.buffers)

    def _save_checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            self.sampler.epoch, self.sampler.position = self.position.epoch, self.position.batch
            self.run.save_checkpoint(self.position, self._stateful())

    def _stateful(self) -> dict[str, Stateful]:
        return {
            "learner": self.learner,
            "method": self.method,
            "optimizer": self.optimizer,
            "sampler": self.sampler,
        }

    def _log(self, kind: str, **values: Any) -> None:
        self.position.records += 1
        self.metrics.add({"kind": kind, "epoch": self.position.epoch, "step": self.position.step, **values})
