"""The reference loop: one task, one algorithm, any number of workers, with a stopwatch at the edges of every step."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tutti.comm.base import Comm
from tutti.comm.lossy import Loss, Lossy
from tutti.engine import Run, distribute
from tutti.errors import UserError
from tutti.files import Refuge
from tutti.models.base import Model
from tutti.partitions.base import Partition
from tutti.resuming import Keeping, Saver
from tutti.sampling import EpochSampler, ShareSampler
from tutti.spec import Range, Share, parse
from tutti.stopwatch import Stopwatch
from tutti.tasks.base import Data, Split, Task, find_task

_building = threading.Lock()  # workers that are threads share torch's random state
LossRate = Annotated[Share, Range(most=0.99)]  # of messages


def find_usual_model(task: str) -> str:
    """What this task is trained with where no model is named; empty where it makes one of its own."""
    name = getattr(find_task(task), "default_model", "")
    return str(parse(name, Model)) if name else ""


@dataclass(frozen=True)
class Plan:
    """Everything of a run but its algorithm; the runs of a comparison share one."""

    task: str = "digits"
    model: str = ""  # the task's own where none is named
    global_batch: int = 64
    epochs: int | None = 12
    steps: int | None = None
    lr: float = 0.1
    momentum: float = 0.9
    optimizer: str = "sgd"
    schedule: str = "cosine"
    seed: int = 0
    device: str = "cpu"
    data: str = ""  # the folder of the user's data; else $TUTTI_DATA or the cache
    partition: str = "iid"  # whose samples are whose; iid: anybody's, dealt out anew in every epoch
    samples: int | None = None  # only so many of the training set, its first ones
    loss: float = 0.0  # the share of messages that get lost on the way, see comm/lossy.py

    def build(self) -> tuple[Task, Data, nn.Module]:
        """The task, its data and a fresh model: the same on every worker."""
        task = find_task(self.task)
        data = _load(task, self.data, self.samples)
        with _building:
            torch.manual_seed(self.seed)
            own = None if self.model else task.make_model(data)
            name = self.model or find_usual_model(self.task)
            if own is None and not name:
                raise UserError(f"the task {self.task} has neither make_model nor default_model; name one with --model")
            model = own or parse(name, Model).build(data.shape, data.classes)
        return task, data, model

    def check(self, workers: int) -> None:
        """Refuse what cannot be, before any worker starts; where there is a partition, the data is read for it."""
        Loss(self.loss)
        if self.global_batch < workers:
            raise UserError(
                f"{workers} workers cannot share {self.global_batch} samples per step: take a global batch of at least "
                f"{workers}, or fewer workers"
            )
        find_task(self.task).check_data(Path(self.data) if self.data else None)
        if self.divides:
            _try_partition(self.task, self.data, self.samples, self.partition, workers)

    @property
    def divides(self) -> bool:
        """Whether every worker has samples of its own."""
        return parse(self.partition, Partition).name != "iid"

    def make_sampler(self, targets: Tensor, workers: int, rank: int) -> EpochSampler | ShareSampler:
        if self.global_batch > len(targets):
            raise UserError(
                f"{self.global_batch} samples per step are more than the {len(targets)} there are to train on; take a "
                f"smaller --batch (of one worker) or --global-batch (of all {workers})"
            )
        if not self.divides:
            return EpochSampler(len(targets), self.global_batch, workers, rank, self.seed)
        shares = parse(self.partition, Partition).split(targets, workers, self.seed)
        return ShareSampler(shares, self.global_batch, rank, self.seed)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        return kind(model.parameters(), lr=self.lr)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The learning rate over the steps: down to zero along a cosine, or constant."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)

    def count_steps(self, workers: int) -> int:
        """Of a run; the data is read where nobody has said."""
        if self.steps is not None:
            return self.steps
        data = _load(find_task(self.task), self.data, self.samples)
        return self.total_steps(self.make_sampler(data.train.targets, workers, 0).steps)

    def total_steps(self, per_epoch: int) -> int:
        return self.steps if self.steps is not None else (self.epochs or 0) * per_epoch


def _load(task: Task, folder: str, samples: int | None) -> Data:
    return task.load(Path(folder) if folder else None).take(samples)


@cache
def _try_partition(task: str, folder: str, samples: int | None, partition: str, workers: int) -> None:
    data = _load(find_task(task), folder, samples)
    parse(partition, Partition).split(data.train.targets, workers, seed=0)


def train(
    comm: Comm, report: Any, spec: str, plan: Plan, save: str = "", keeping: Keeping | None = None
) -> list[dict[str, Any]]:
    """Train on this worker; every worker returns the measurements of all. The file `save` gets the mean model."""
    device = find_device(plan.device, comm.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    task, data, model = plan.build()
    model = task.prepare(model, comm.clock).to(device)
    optimizer = plan.make_optimizer(model)
    comm = Lossy(comm, plan.loss, plan.seed) if plan.loss else comm
    with distribute(model, optimizer, spec, comm=comm) as run:
        sampler = plan.make_sampler(data.train.targets, run.size, run.rank)
        watch = Stopwatch(run, report, plan.total_steps(sampler.steps), device, _count_classes(sampler, data))
        run.algorithm.expect(watch.total)
        schedule = plan.make_schedule(optimizer, watch.total)
        saver = Saver(keeping, run, watch, comm, schedule=schedule)
        for indices, chances, epochs in _batches(sampler, watch.total, task.chances, saver.go_on()):
            watch.begin()
            inputs, targets = (t.to(device) for t in task.batch(data.train, indices))
            inputs = task.augment(inputs, chances.to(device))
            run.samples = len(indices) * run.size / plan.global_batch  # one, where all shares are equal
            loss = task.loss(run.model(inputs), targets)
            loss.backward()
            run.step()
            schedule.step()
            optimizer.zero_grad()
            watch.end(loss, len(indices))
            if epochs:
                watch.evaluated(epochs, _evaluate(run, task, data.test, device))
            saver.save_if_due()
        if save:
            _save(run, Path(save), watch)
        return watch.collect(_find_own_accuracy(run, task, data.test, device))


def _count_classes(sampler: EpochSampler | ShareSampler, data: Data) -> list[int]:
    """Of this worker's own samples; nothing where it has none, or where a sample has no class."""
    targets = data.train.targets
    if isinstance(sampler, EpochSampler) or targets.dim() != 1 or targets.is_floating_point():
        return []
    counts: list[int] = torch.bincount(targets[sampler.share], minlength=data.classes).tolist()
    return counts


def _batches(
    sampler: EpochSampler | ShareSampler, total: int, chances: int, done: int = 0
) -> Iterator[tuple[Tensor, Tensor, float | None]]:
    """(indices, so many chances for each, and where to evaluate how many epochs are over) for so many steps, behind
    those that are done."""
    epoch = done // sampler.steps
    while done < total:
        epoch += 1
        parts, drawn = sampler.epoch(epoch), sampler.chances(epoch, chances)
        start = done - (epoch - 1) * sampler.steps
        for position, indices in enumerate(parts[start:], start=start + 1):
            done += 1
            evaluates = position == len(parts) or done == total
            yield indices, drawn[indices], epoch - 1 + position / len(parts) if evaluates else None
            if done == total:
                return


def _evaluate(run: Run, task: Task, split: Split, device: torch.device) -> dict[str, float]:
    """Accuracy and loss of the mean model on the whole split, of which every worker takes a share; where workers
    differ, also how far they are from it."""
    share = torch.arange(len(split)).tensor_split(run.size)[run.rank]
    with run.consensus() as model:
        loss, correct = _score(model, task, split, share, device)
        apart = {} if run.algorithm.equal else {"distance": run.consensus_distance()}
    total_loss, total_correct, count = run.sums([loss, correct, len(share)]).tolist()
    return {"accuracy": total_correct / count, "loss": total_loss / count, **apart}


def _find_own_accuracy(run: Run, task: Task, split: Split, device: torch.device) -> float | None:
    """Of this worker's own model on the whole split; None where it is everybody's."""
    if run.algorithm.equal:
        return None
    _, correct = _score(run.replica.model, task, split, torch.arange(len(split)), device)
    return correct / len(split)


@torch.no_grad()
def _score(model: nn.Module, task: Task, split: Split, share: Tensor, device: torch.device) -> tuple[float, float]:
    """The sum of the losses on these samples, and how many of them are classified right."""
    model.eval()
    loss = correct = 0.0
    for indices in share.split(256):
        inputs, targets = (t.to(device) for t in task.batch(split, indices))
        outputs = model(inputs)
        loss += float(task.loss(outputs, targets)) * len(indices)
        correct += task.correct(outputs, targets)
    model.train()
    return loss, correct


def _save(run: Run, path: Path, watch: Stopwatch) -> None:
    """Worker 0 writes the mean model's state_dict, whole or not at all; elsewhere where that disk is full."""
    state = run.consensus_state_dict()
    if run.rank > 0:
        return
    problem = Refuge().write(path, lambda place: _write_model(state, place))
    if problem:
        watch.complain(problem)


def _write_model(state: dict[str, Any], path: Path) -> None:
    content, draft = io.BytesIO(), path.with_name(f"{path.name}.draft")
    torch.save(state, content)  # which reports a full disk as something else
    try:
        draft.write_bytes(content.getbuffer())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def find_device(name: str, rank: int) -> torch.device:
    """The device of this worker; several workers share one where there are fewer devices than workers."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
