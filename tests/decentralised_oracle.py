"""What decentralised methods are held against: problems that differ between workers, graphs, and mixing matrices.

Nothing but the last part knows the package: numpy in float64, links written out once more, and Metropolis' weights from
a list of links. The points of all workers are a matrix with one row per worker, as in the papers' matrix form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from training import set_up
from workers import on_threads

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Comm
from tutti.launch import Report

Array = np.ndarray[Any, np.dtype[np.float64]]
Links = set[frozenset[int]]

# --- problems --------------------------------------------------------------------------------------------------------

SHAPES = ((2, 2), (3,))  # of the two tensors that a point is cut into
NUMBERS = 7  # in a point


@dataclass(frozen=True)
class Quadratics:
    """Worker i has f_i(x) = |A_i x - b_i|^2 / 2, where b_i is drawn anew for each step if there is noise."""

    matrices: Array  # worker, row, column
    targets: Array  # worker, row
    noise: float = 0.0

    @property
    def workers(self) -> int:
        return len(self.targets)

    def target(self, worker: int, step: int) -> Array:
        drawn = np.random.default_rng((worker, step)).normal(size=self.targets.shape[1])
        return self.targets[worker] + self.noise * drawn

    def gradient(self, worker: int, point: Array, step: int) -> Array:
        matrix = self.matrices[worker]
        return matrix.T @ (matrix @ point - self.target(worker, step))

    def gradients(self, points: Array, step: int) -> Array:
        """A row for each worker, at its own point."""
        return np.stack([self.gradient(worker, points[worker], step) for worker in range(self.workers)])

    def optimum(self) -> Array:
        """Of the sum of all f_i, without noise: there the gradients of all workers add up to zero."""
        return np.linalg.solve(
            sum(matrix.T @ matrix for matrix in self.matrices),
            sum(matrix.T @ target for matrix, target in zip(self.matrices, self.targets, strict=True)),
        )


def make_quadratics(workers: int, noise: float = 0.0) -> Quadratics:
    """Each worker's own optimum is far from the others'; well enough conditioned for steps of 0.2."""
    drawn = np.random.default_rng(workers)
    matrices = np.eye(NUMBERS) + 0.2 * drawn.normal(size=(workers, NUMBERS, NUMBERS))
    return Quadratics(matrices, 3 * drawn.normal(size=(workers, NUMBERS)), noise)


def start() -> Array:
    """Where everybody begins."""
    return np.random.default_rng(0).normal(size=NUMBERS)


# --- optimizers ------------------------------------------------------------------------------------------------------

# (points, gradients, step) -> what each worker's own optimizer adds to its point; one of them is good for one run
Update = Callable[[Array, Array, int], Array]


def plain(lr: float, idle: Iterable[tuple[int, int]] = ()) -> Update:
    """- lr g; `idle` are the (worker, step) that have no gradient."""

    def update(points: Array, gradients: Array, step: int) -> Array:
        at_work = [(worker, step) not in set(idle) for worker in range(len(points))]
        return -lr * gradients * np.array(at_work)[:, None]

    return update


def with_momentum(lr: float, beta: float, decay: float) -> Update:
    """v <- beta v + (g + decay x);  - lr v"""
    velocity: Any = 0.0

    def update(points: Array, gradients: Array, _: int) -> Array:
        nonlocal velocity
        velocity = beta * velocity + (gradients + decay * points)
        return -lr * velocity

    return update


def with_adam(lr: float) -> Update:
    """Algorithm 1 of Kingma and Ba."""
    first: Any = 0.0
    second: Any = 0.0

    def update(_: Array, gradients: Array, step: int) -> Array:
        nonlocal first, second
        first = 0.9 * first + 0.1 * gradients
        second = 0.999 * second + 0.001 * gradients**2
        return -lr * first / (1 - 0.9 ** (step + 1)) / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)

    return update


# --- graphs and mixing -----------------------------------------------------------------------------------------------


def _links(pairs: Iterable[tuple[int, int]]) -> Links:
    return {frozenset(pair) for pair in pairs if pair[0] != pair[1]}


# undirected and the same at every step, by the names that the package has for them
LINKS: dict[str, Callable[[int], Links]] = {
    "ring": lambda n: _links((i, (i + 1) % n) for i in range(n)),
    "chain": lambda n: _links((i, i + 1) for i in range(n - 1)),
    "star": lambda n: _links((0, i) for i in range(n)),
    "complete": lambda n: _links((i, j) for i in range(n) for j in range(n)),
    "binary-tree": lambda n: _links((i, (i - 1) // 2) for i in range(1, n)),
}


def metropolis(workers: int, links: Links) -> Array:
    """W_ij = 1 / (1 + the larger degree of i and j) for every link; what is left of 1 is W_ii."""
    degree = [sum(worker in link for link in links) for worker in range(workers)]
    matrix = np.zeros((workers, workers))
    for one, other in (sorted(link) for link in links):
        matrix[one, other] = matrix[other, one] = 1 / (1 + max(degree[one], degree[other]))
    for worker in range(workers):
        matrix[worker, worker] = 1 - sum(matrix[worker, other] for other in range(workers) if other != worker)
    return matrix


def lazy(workers: int, links: Links) -> Array:
    """Half of Metropolis, half of staying where one is."""
    return (np.eye(workers) + metropolis(workers, links)) / 2


def exponential(workers: int) -> Array:
    """Worker j sends to j + 1, j + 2, j + 4, ...; all that a worker gets, its own too, counts alike."""
    ahead = [2**k for k in range(workers) if 2**k < workers]
    matrix = np.eye(workers)
    for sender in range(workers):
        for places in ahead:
            matrix[(sender + places) % workers, sender] = 1
    return matrix / (len(ahead) + 1)


def one_peer_exponential(workers: int, step: int) -> Array:
    """Worker j sends to one of these, to the next one at the next step; half of its own, half of what comes."""
    if workers == 1:
        return np.ones((1, 1))
    ahead = [2**k for k in range(workers) if 2**k < workers]
    places = ahead[step % len(ahead)]
    return (np.eye(workers) + np.roll(np.eye(workers), places, axis=0)) / 2


# --- the package beside it -------------------------------------------------------------------------------------------


class Point(nn.Module):
    """A point in two tensors of different shape, and so in two buckets where each holds one."""

    def __init__(self) -> None:
        super().__init__()
        pieces = torch.from_numpy(start()).split([int(np.prod(shape)) for shape in SHAPES])
        self.pieces = nn.ParameterList(
            piece.clone().reshape(shape) for piece, shape in zip(pieces, SHAPES, strict=True)
        )

    def forward(self) -> Tensor:
        return torch.cat([piece.reshape(-1) for piece in self.pieces])


def loss_at(point: Tensor, problem: Quadratics, worker: int, step: int) -> Tensor:
    """Its gradient is `problem.gradient`, by autograd."""
    matrix, target = torch.from_numpy(problem.matrices[worker]), torch.from_numpy(problem.target(worker, step))
    return (matrix @ point - target).square().sum() / 2


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def sgd(lr: float, **settings: Any) -> MakeOptimizer:
    return lambda model: torch.optim.SGD(model.parameters(), lr, **settings)


def follow(
    comm: Comm,
    algorithm: str | Algorithm,
    problem: Quadratics,
    steps: int,
    optimizer: MakeOptimizer,
    schedule: MakeSchedule | None = None,
    idle: Iterable[tuple[int, int]] = (),
) -> Array:
    """This worker's point after every step; `idle` are the (worker, step) that have no backward."""
    points = []
    with set_up(comm, algorithm, Point(), optimizer) as run:
        changing = schedule(run.replica.optimizer) if schedule is not None else None
        for step in range(steps):
            run.replica.optimizer.zero_grad()
            if (comm.rank, step) not in set(idle):
                loss_at(run.model(), problem, comm.rank, step).backward()
            run.step()
            if changing is not None:
                changing.step()
            points.append(run.model().detach().numpy().copy())
    return np.stack(points)


def follow_all(
    algorithm: str | Algorithm, problem: Quadratics, steps: int, optimizer: MakeOptimizer, **how: Any
) -> Array:
    """The points of all workers after every step, on threads: step, worker, number."""
    strict, rest = how.pop("strict", False), how
    each = on_threads(
        problem.workers, lambda comm: follow(comm, algorithm, problem, steps, optimizer, **rest), strict=strict
    )
    return np.stack(each, axis=1)


def follow_several(comm: Comm, _: Report, algorithms: list[str], steps: int) -> Tensor:
    """For `launch`: the points of all workers with each of these, with momentum: algorithm, step, worker, number."""
    problem, optimizer = make_quadratics(comm.size), sgd(0.1, momentum=0.5)
    mine = np.stack([follow(comm, algorithm, problem, steps, optimizer) for algorithm in algorithms])
    each = torch.empty(comm.size, *mine.shape, dtype=torch.float64)
    comm.all_gather(torch.from_numpy(mine), each)
    return each.permute(1, 2, 0, 3)
