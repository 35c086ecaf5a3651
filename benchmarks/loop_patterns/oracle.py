"""The references: each method written once more, by hand, over torch.distributed and without Tutti.

    gradient   g <- sum_j s_j g_j / sum_j s_j, after the backward; a parameter that no worker used has no gradient
    model      x <- sum_j s_j x_j / sum_j s_j, after every worker's own step
    gossip     x_i <- sum_j W_ij x_j, W by Metropolis on a ring
    relay      x_i <- the mean of all x_j(t - d_ij + 1) that exist, d_ij the distance in the tree of the element
    alone      no exchange: what a loop without synchronisation gives, to see that a pattern can tell the difference

The loop of the pattern is the same; only what stands around `backward` and `step` differs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Optimizers = list[torch.optim.Optimizer]

# The two trees over 4 workers in which relay-sgd sends the two halves of a buffer, and the one over 2 workers.
_TREES = {2: [[(0, 1)], [(0, 1)]], 4: [[(3, 1), (1, 0), (1, 2)], [(0, 2), (2, 3), (2, 1)]]}
_ALIGNMENT = 64  # bytes at which every tensor of a buffer begins; decides which half an element lies in


class Oracle:
    """One method on one worker, in the shape that the patterns use (see session.py)."""

    def __init__(
        self, kind: str, model: nn.Module, optimizers: Optimizers, variant: str = "", group: Any = None
    ) -> None:
        self.kind, self.variant, self.group = kind, variant, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.module, self.optimizers = model, optimizers
        self.samples = 1.0
        self.joined = False
        self._accumulating = self._synced = False
        self._history: dict[int, list[Tensor]] = {}
        self._places: dict[int, int] = {}
        self._once: dict[nn.Parameter, None] = {}  # those that were trainable at some time
        for tensor in [*model.parameters(), *model.buffers(), *self._own_tensors()]:
            self._assign(tensor, self._gather(tensor)[0])

    def model(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, **options: Any) -> None:
        loss.backward(**options)
        if not self._accumulating:
            self._sync()

    def step(self, scaler: Any = None, optimizer: Any = None, closure: Any = None) -> None:
        if not self._synced:
            self._sync()
        chosen = self.optimizers if optimizer is None else [optimizer]
        for each in chosen:
            if scaler is not None:
                scaler.step(each)
            elif closure is not None:
                each.step(closure)
            else:
                each.step()
        self._synced = False
        if self.kind in ("model", "gossip", "relay"):
            self._mix(self.parameters() if optimizer is None else _parameters_of(chosen))

    def accumulate(self) -> Any:
        @contextmanager
        def accumulating() -> Iterator[None]:
            self._accumulating = True
            try:
                yield
            finally:
                self._accumulating = False

        return accumulating()

    def mean(self, value: float) -> float:
        if self.kind == "alone":
            dist.barrier(group=self.group)
            return float(value)
        return float(self._gather(torch.tensor(float(value), dtype=torch.float64)).mean())

    def join(self) -> Any:
        return nullcontext()

    def save(self, folder: str) -> None:
        self._saved = copy.deepcopy(
            (self.module.state_dict(), [o.state_dict() for o in self.optimizers], dict(enumerate(self._ordered())))
        )

    def load(self, folder: str, source: Oracle) -> None:
        """Into a new model of the same shape, from the oracle that saved."""
        model, optimizers, history = copy.deepcopy(source._saved)
        self.module.load_state_dict(model)
        for optimizer, state in zip(self.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(state)
        parameters = self.parameters()
        self._history = {id(p): past for p, past in zip(parameters, history.values(), strict=True) if past}

    def close(self) -> None:
        pass

    # --- which parameters --------------------------------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """The trainable ones of the model, as they are now, and those that only the optimizers know."""
        every = dict.fromkeys(self.module.parameters())
        every.update(dict.fromkeys(_parameters_of(self.optimizers)))
        self._once.update({p: None for p in every if p.requires_grad})
        return [p for p in every if p.requires_grad or (self.variant == "frozen are mixed" and p in self._once)]

    def _own_tensors(self) -> list[Tensor]:
        known = {id(p) for p in self.module.parameters()}
        return [p for p in _parameters_of(self.optimizers) if id(p) not in known]

    def _ordered(self) -> list[list[Tensor]]:
        return [self._history.get(id(p), []) for p in self.parameters()]

    # --- gradients ---------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        self._synced = True
        if self.kind == "gradient":
            share = self._share()
            for parameter in self.parameters():
                self._average_gradient(parameter, share)
        if self.kind in ("gradient", "model"):
            self._agree_on_buffers()

    def _average_gradient(self, parameter: nn.Parameter, share: float) -> None:
        if not parameter.requires_grad:
            return
        used = self._gather(torch.tensor(float(parameter.grad is not None))).sum() > 0
        if not used:
            return
        grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        grad = grad.to_dense() if grad.is_sparse else grad
        total = self._gather(grad.detach() * share).sum(0)
        if parameter.grad is None or parameter.grad.is_sparse:
            parameter.grad = torch.zeros_like(parameter)
        self._assign(parameter.grad, total)

    def _share(self) -> float:
        """What this worker's contribution weighs; all of them add up to 1."""
        every = self._gather(torch.tensor(float(self.samples), dtype=torch.float64))
        if self.variant == "divided by all":
            return float(self.samples) / self.size
        return float(self.samples / every.sum())

    def _agree_on_buffers(self) -> None:
        for buffer in self.module.buffers():
            every = self._gather(buffer)
            average = self.kind == "model" and buffer.is_floating_point()
            self._assign(buffer, every.mean(0) if average else every[0])

    # --- weights -----------------------------------------------------------------------------------------------------

    def _mix(self, parameters: list[nn.Parameter]) -> None:
        if self.kind == "model":
            share = self._share()
            for parameter in parameters:
                self._assign(parameter, self._gather(parameter.detach() * share).sum(0))
        elif self.kind == "gossip":
            row = metropolis_on_a_ring(self.size)[self.rank]
            for parameter in parameters:
                every = self._gather(parameter)
                self._assign(parameter, torch.tensordot(row.to(every.dtype), every, 1))
        else:
            if self.variant == "relay begins anew" and self._have_moved(parameters):
                self._history.clear()
            masks = self._halves(parameters)
            for parameter in parameters:
                past = self._history.setdefault(id(parameter), [])
                past.append(self._gather(parameter))
                first, second = (self._relayed(past, tree) for tree in _TREES[self.size])
                self._assign(parameter, torch.where(masks[parameter], first, second))

    def _have_moved(self, parameters: list[nn.Parameter]) -> bool:
        """Whether the memory of one of them is another one than at the last step."""
        before, self._places = self._places, {id(p): p.data_ptr() for p in parameters}
        return any(before.get(key, place) != place for key, place in self._places.items())

    def _relayed(self, past: list[Tensor], tree: list[tuple[int, int]]) -> Tensor:
        away = distances(tree, self.size)[self.rank]
        ages = [max(0, steps - 1) for steps in away]
        there = [past[-1 - age][j] for j, age in enumerate(ages) if age < len(past)]
        return torch.stack(there).mean(0)

    def _halves(self, parameters: list[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Of each element, whether it lies in the first half of its buffer: one per group and type, last layers first,
        every tensor at a multiple of 64 bytes."""
        numbered = [(i, k, g) for i, o in enumerate(self.optimizers) for k, g in enumerate(o.param_groups)]
        groups = {p: (i, k) for i, k, group in numbered for p in group["params"]}
        buffers: dict[Any, list[nn.Parameter]] = {}
        for parameter in reversed(parameters):
            buffers.setdefault((groups.get(parameter), parameter.dtype), []).append(parameter)
        masks = {}
        for buffer in buffers.values():
            every, offset, offsets = max(1, _ALIGNMENT // buffer[0].element_size()), 0, []
            for parameter in buffer:
                offsets.append(offset)
                offset = -(-(offset + parameter.numel()) // every) * every
            half = -(-(offsets[-1] + buffer[-1].numel()) // 2)
            for parameter, begin in zip(buffer, offsets, strict=True):
                masks[parameter] = (begin + torch.arange(parameter.numel()) < half).view(parameter.shape)
        return masks

    # --- messages ----------------------------------------------------------------------------------------------------

    def _gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all workers in double precision, one row each; this worker's own when there is no exchange."""
        own = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        own = own.double().contiguous()
        rows = [torch.empty_like(own) for _ in range(self.size)]
        if self.kind == "alone":
            rows = [own.clone() for _ in rows]
        else:
            dist.all_gather(rows, own, group=self.group)
        every = torch.stack(rows)
        return torch.view_as_complex(every) if tensor.is_complex() else every

    def _assign(self, tensor: Tensor, value: Tensor) -> None:
        with torch.no_grad():
            tensor.data.copy_(value)  # graphs that are still to be used stay valid


def _parameters_of(optimizers: Optimizers) -> list[nn.Parameter]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def metropolis_on_a_ring(size: int) -> Tensor:
    """W_ij = 1 / (1 + the larger degree) for neighbours; what is left of 1 is W_ii."""
    links = {frozenset((i, (i + 1) % size)) for i in range(size)} - {frozenset((0,))}
    degree = [sum(i in link for link in links) for i in range(size)]
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for i, j in (tuple(link) for link in links):
        matrix[i, j] = matrix[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return matrix + torch.diag(1 - matrix.sum(1))


def distances(tree: list[tuple[int, int]], size: int) -> list[list[int]]:
    """How many links lie between any two workers, by Floyd and Warshall."""
    away = [[0 if i == j else size for j in range(size)] for i in range(size)]
    for i, j in tree:
        away[i][j] = away[j][i] = 1
    for k in range(size):
        for i in range(size):
            for j in range(size):
                away[i][j] = min(away[i][j], away[i][k] + away[k][j])
    return away
