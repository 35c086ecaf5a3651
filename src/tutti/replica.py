"""One worker's model and optimizer as flat buckets: the only hooks in the package.

Parameters become views of flat weight buffers (their memory format kept), gradients views of flat gradient buffers.
Buckets are filled in reverse order of the parameters, as backward produces them, and handed on in bucket order as soon
as they are full; when backward ends, the rest is handed on and `on_end` is called, which waits for whatever is to be
complete when `backward()` returns. `zero_grad()` detaches the gradients from their buffers; the next backward puts them
back.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from tutti.errors import UserError
from tutti.layout import Layout


@dataclass(eq=False)
class Bucket:
    """Some parameters of one group, type and device, side by side."""

    index: int
    layout: Layout
    parameters: list[nn.Parameter]
    group: int | None  # the optimizer's parameter group; None if the optimizer does not know them
    weights: Tensor
    spacious: Tensor  # the weights, and spare elements behind them; see layout.py
    grads: Tensor  # with the spare elements too
    views: list[Tensor]  # the gradients, one per parameter
    scale: float = 1.0  # what this worker's gradients are multiplied by on their way in; 0: they are dropped
    missing: set[int] = field(default_factory=set)  # positions whose gradient is not there yet
    unused: list[int] = field(default_factory=list)  # positions that had none in this worker's backward

    def begin(self, scale: float) -> None:
        """Wait for every gradient; count every parameter as used."""
        self.scale = scale
        self.missing, self.unused = set(range(len(self.parameters))), []
        self.grads[self.layout.numel : -1] = 1

    def take(self, position: int) -> None:
        """A gradient has come: scaled into its place in the buffer."""
        parameter, view = self.parameters[position], self.views[position]
        assert parameter.grad is not None
        if self.scale != 1:
            torch.mul(parameter.grad.detach(), self.scale, out=view)
        elif parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
        parameter.grad = view
        self.missing.remove(position)

    def fill_missing(self) -> None:
        """Backward is over: what has not come counts as zero."""
        for position in sorted(self.missing):
            if self.scale and self.parameters[position].grad is not None:
                self.take(position)
                continue
            self.parameters[position].grad = None
            self.views[position].zero_()
            self.grads[self.layout.numel + position] = 0
            self.unused.append(position)
        self.missing = set()

    def is_used(self, position: int) -> bool:
        """After the exchange: whether any worker had a gradient for this parameter."""
        return position not in self.unused or bool(self.grads[self.layout.numel + position] != 0)

    def adopt(self) -> None:
        """After the exchange: a parameter that only others used has a gradient too; one that nobody used has none."""
        for position in self.unused:
            if self.is_used(position):
                self.parameters[position].grad = self.views[position]

    def forget(self) -> None:
        """The parameters have no gradients any more; the bucket keeps them."""
        for parameter in self.parameters:
            parameter.grad = None

    @cached_property
    def stand_ins(self) -> list[Tensor]:
        """The same weights with a `grad` of their own; autograd notices what is written through them."""
        return [parameter.detach() for parameter in self.parameters]


class Replica:
    """A model and its optimizer; see the module."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, zeros: Callable[..., Tensor] = torch.zeros
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._zeros = zeros  # makes what is sent and received
        self.buckets: list[Bucket] = []
        self.samples = 1.0  # how many samples this worker's gradient stands for; with none it counts as having none
        self.step_samples = 1.0  # the same for the step under way: what it was when its backward began
        self.steps = 0
        self.before_exchange: Callable[[], None] = lambda: None  # the run's; see join.py
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.scale_of: Callable[[Bucket], float] = lambda _: 1.0  # for the samples of this step
        self.scaler: torch.amp.GradScaler | None = None
        self._on_bucket: Callable[[Bucket], None] = lambda _: None
        self._places: dict[nn.Parameter, tuple[Bucket, int]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._doors: list[torch.utils.hooks.RemovableHandle] = []
        self._paused = False
        self._running = False  # inside a backward whose gradients are to be exchanged
        self._next = 0  # the bucket to be handed on next
        self.exchanged = False  # since the last step
        self.stepping = False  # inside the optimizer's step, called from here

    # --- buckets -----------------------------------------------------------------------------------------------------

    def make_buckets(self, nbytes: int, on_bucket: Callable[[Bucket], None], first: int | None = None) -> None:
        """Cut the parameters into buckets of `nbytes` or a little more (0: one per tensor) and watch their gradients.

        The first may be smaller, so that there is something to send soon. Called again, it cuts anew.
        """
        _remove(self._hooks)
        self.buckets, self._places = [], {}
        self._on_bucket = on_bucket
        groups = {p: i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        named = {p: name for name, p in self.model.named_parameters()}
        every = [p for p in {**dict.fromkeys(named), **dict.fromkeys(groups)} if p.requires_grad]
        for parameters in _cut(list(reversed(every)), groups, nbytes, nbytes if first is None else first):
            self._add_bucket([(named.get(p, f"extra.{i}"), p) for i, p in enumerate(parameters)], groups)
        for parameter in self._places:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))

    def release(self) -> None:
        """Take off everything that an algorithm has put on, so that another one can be set up; weights, gradients and
        what the run has put on stay."""
        self.close()
        self.buckets, self._places = [], {}
        self._on_bucket = lambda _: None
        self.on_begin = lambda: None
        self.scale_of = lambda _: 1.0

    def _add_bucket(self, named: list[tuple[str, nn.Parameter]], groups: dict[nn.Parameter, int]) -> None:
        layout = Layout.of([(name, p) for name, p in named])
        spacious, grads = (self._zeros(layout.total, dtype=layout.dtype, device=layout.device) for _ in range(2))
        weights = spacious[: layout.numel]
        parameters = [p for _, p in named]
        views = [s.view(grads) for s in layout.slices]
        group = groups.get(parameters[0])
        bucket = Bucket(len(self.buckets), layout, parameters, group, weights, spacious, grads, views)
        for position, (piece, parameter) in enumerate(zip(layout.slices, parameters, strict=True)):
            place = piece.view(weights)
            place.copy_(parameter.data)
            parameter.data = place
            if parameter.grad is not None:
                views[position].copy_(parameter.grad)
                parameter.grad = views[position]
            self._places[parameter] = (bucket, position)
        self.buckets.append(bucket)

    # --- backward ----------------------------------------------------------------------------------------------------

    def _on_gradient(self, parameter: Tensor) -> None:
        if self._paused:
            return
        if not self._running:
            self._begin()
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        bucket, position = self._places[cast(nn.Parameter, parameter)]  # or a plain leaf of the optimizer's
        name = bucket.layout.slices[position].name
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise UserError(f"'{name}' has a sparse gradient, which no route here can add up; use sparse=False")
        if position not in bucket.missing:
            raise UserError(
                f"'{name}' got two gradients in one backward (use checkpoint(..., use_reentrant=False)), "
                "or the backward before this one failed (then set the run up again)"
            )
        if not bucket.scale:
            return  # it stands for no samples: dropped when backward is over, whatever it is
        bucket.take(position)
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._hand_on()

    def _begin(self) -> None:
        self.before_exchange()
        self.on_begin()
        self._running, self._next, self.step_samples = True, 0, self.samples
        for bucket in self.buckets:
            bucket.begin(self.scale_of(bucket) if self.samples else 0.0)

    def _hand_on(self) -> None:
        self._on_bucket(self.buckets[self._next])
        self._next += 1

    def finish(self) -> None:
        """Backward is over (or never came): hand on what is left, and return when all of it is exchanged."""
        if not self._running:
            self._begin()
        try:
            for bucket in self.buckets:
                bucket.fill_missing()
            while self._next < len(self.buckets):
                self._hand_on()
            self.on_end()
        finally:
            self._running = False
        self.exchanged = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While this lasts, gradients add up and nothing is exchanged."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    # --- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """The optimizer's own step on everything."""
        self.stepping = True
        try:
            if self.scaler is not None:
                self._require_gradient(self.scaler)
                self.scaler.step(self.optimizer)
            else:
                self.optimizer.step()
        finally:
            self.stepping = False

    def _require_gradient(self, scaler: torch.amp.GradScaler) -> None:
        """torch's own message is an assertion about inf checks."""
        if scaler.is_enabled() and all(p.grad is None for g in self.optimizer.param_groups for p in g["params"]):
            raise UserError(
                "a GradScaler needs a gradient in every step, and this worker has none in this one (no backward, or "
                "run.samples = 0); use bfloat16 autocast, which needs no scaler, or ddp"
            )

    def local_step(self, bucket: Bucket) -> None:
        """The optimizer's own step on one bucket's parameters."""
        if bucket.group is None:
            return
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [{**groups[bucket.group], "params": bucket.parameters}]
        try:
            self.step()
        finally:
            self.optimizer.param_groups = groups

    def settings_of(self, bucket: Bucket) -> dict[str, Any] | None:
        """The bucket's group as it is now, to step with later: a schedule changes it, tensors even in place."""
        if bucket.group is None:
            return None
        group = self.optimizer.param_groups[bucket.group]
        return {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}

    def step_elsewhere(self, bucket: Bucket, settings: dict[str, Any]) -> None:
        """The same on any thread, with these settings and the bucket's gradients, whatever becomes of `grad` meanwhile;
        the user's optimizer is not touched but its state."""
        for position, stand_in in enumerate(bucket.stand_ins):
            stand_in.grad = bucket.views[position] if bucket.is_used(position) else None
        pairs = list(zip(bucket.parameters, bucket.stand_ins, strict=True))
        state = self.optimizer.state
        self._beside.state = defaultdict(dict, {stand_in: state[p] for p, stand_in in pairs if p in state})
        self._beside.param_groups = [{**settings, "params": bucket.stand_ins}]
        self._beside.step()
        state.update({p: self._beside.state[stand_in] for p, stand_in in pairs if stand_in in self._beside.state})

    @cached_property
    def _beside(self) -> torch.optim.Optimizer:
        """An optimizer of the same kind, with the flags that torch does not copy and without the hooks."""
        beside = copy.copy(self.optimizer)
        for name, value in vars(self.optimizer).items():
            if name.startswith("_") and not hasattr(beside, name):
                setattr(beside, name, value)
        return beside

    def steps_alone(self) -> bool:
        """Whether a parameter's step needs that parameter only: torch's own optimizers; one from elsewhere may look at
        all parameters at once, or count its steps."""
        return type(self.optimizer).__module__.startswith("torch.optim")

    # --- steps of an algorithm with update=bucket --------------------------------------------------------------------

    def require_own_steps(self) -> None:
        if not self.steps_alone():
            kind = type(self.optimizer).__name__
            raise UserError(
                f"update=bucket steps on some parameters at a time, and {kind} is none of torch's optimizers"
            )

    def refuse_second_backward(self) -> None:
        if self.exchanged:
            raise UserError(
                "update=bucket has made its step in the backward before this one; put all but the last one of a step "
                "into run.accumulate(), or use update=whole"
            )

    def note_own_steps(self) -> None:
        """The steps have been made during backward."""
        if self.scaler is not None and self.scaler.is_enabled():
            raise UserError("update=bucket steps before a GradScaler could look at all gradients; use update=whole")
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn

    # --- the next forward --------------------------------------------------------------------------------------------

    def watch_forward(self, on_forward: Callable[[list[int]], None]) -> None:
        """Before a module's forward, hand on which buckets its own parameters lie in.

        Some modules inside are never called, since the one around them uses their parameters: those come with its own.
        Evaluation may go other ways than training (torch's transformers do), so all buckets come with its first module.
        """
        called: set[nn.Module] = set()
        read: dict[nn.Module, list[nn.Parameter]] = {}

        def before(module: nn.Module, _: Any) -> None:
            if not (self.model.training and torch.is_grad_enabled()):
                on_forward([bucket.index for bucket in self.buckets])
                return
            if module not in called:
                called.add(module)
                read.clear()
            if module not in read:
                read[module] = [p for m in _reach(module, called) for p in m.parameters(recurse=False)]
            on_forward([self._places[p][0].index for p in read[module] if p in self._places])

        # in front of hooks that compute weights, such as those of nn.utils.prune
        self._doors = [module.register_forward_pre_hook(before, prepend=True) for module in self.model.modules()]

    def watched(self) -> set[int]:
        """The buckets that nothing but forward reads: the optimizer steps on all of it, and modules own all of it."""
        owned = set(self.model.parameters())
        return {b.index for b in self.buckets if b.group is not None and owned.issuperset(b.parameters)}

    def close(self) -> None:
        _remove(self._hooks)
        _remove(self._doors)


def _cut(
    parameters: list[nn.Parameter], groups: dict[nn.Parameter, int], nbytes: int, first: int
) -> list[list[nn.Parameter]]:
    """Buckets in the order in which backward completes them; none spans a group, type or device. A bucket is full when
    it has reached its size: what is large does not leave a small one alone in front of it."""
    done: list[list[nn.Parameter]] = []
    filling: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = (groups.get(parameter), parameter.dtype, parameter.device)
        bucket = filling.setdefault(key, [])
        bucket.append(parameter)
        if sum(p.nbytes for p in bucket) >= (nbytes if done else first):
            done.append(filling.pop(key))
    place = {parameter: i for i, parameter in enumerate(parameters)}
    return sorted([*done, *filling.values()], key=lambda bucket: place[bucket[-1]])


def _reach(module: nn.Module, called: set[nn.Module]) -> Iterator[nn.Module]:
    """The module, and what is inside of it up to those that are called themselves."""
    yield module
    for child in module.children():
        if child not in called:
            yield from _reach(child, called)


def _remove(hooks: list[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()
