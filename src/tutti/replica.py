"""One worker's model and optimizers as flat buckets, filled by hooks on every parameter.

Parameters become views of flat weight buffers (their memory format kept), gradients views of flat gradient buffers.
Buckets are filled in reverse order of the parameters, as backward produces them, and handed on in bucket order as soon
as they are full; when backward ends, the rest is handed on and `on_end` is called, which waits for whatever is to be
complete when `backward()` returns. `zero_grad()` detaches the gradients from their buffers; the next backward puts them
back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from tutti.changes import Change, Parameters
from tutti.errors import UserError
from tutti.hooks import Hook
from tutti.layout import Layout
from tutti.optimizers import Optimizers
from tutti.spent import SpentGradient, spend


@dataclass(eq=False)
class Bucket:
    """Some parameters of one group, type and device, side by side."""

    index: int
    layout: Layout
    parameters: list[nn.Parameter]
    group: int | None  # of the optimizers' parameter groups; None if no optimizer knows them
    weights: Tensor
    spacious: Tensor  # the weights, and spare elements behind them; see layout.py
    grads: Tensor  # with the spare elements too
    views: list[Tensor]  # the gradients, one per parameter
    scale: float = 1.0  # what this worker's gradients are multiplied by on their way in; 0: they are dropped
    steps: int = 0  # that have been made with it
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
            view.copy_(parameter.grad.detach())  # with create_graph it has a graph of its own
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

    def spend(self, in_use: bool) -> None:
        """These gradients have been stepped with: the loop may only drop them."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None:
                parameter.grad = spend(view, in_use)

    def restore(self) -> None:
        """Plain gradients again, where the loop has dropped none."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if isinstance(parameter.grad, SpentGradient):
                parameter.grad = view

    def forget(self) -> None:
        """The parameters have no gradients any more; the bucket keeps them."""
        for parameter in self.parameters:
            parameter.grad = None

    @cached_property
    def shadows(self) -> list[Tensor]:
        """The same weights with a `grad` of their own; autograd notices what is written through them."""
        return [parameter.detach() for parameter in self.parameters]


class Replica:
    """A model and its optimizer; see the module."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        zeros: Callable[..., Tensor] = torch.zeros,
    ) -> None:
        every = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else optimizers
        self.model, self.optimizers = model, Optimizers(every)
        self.parameters = Parameters(model, self.optimizers)
        self._zeros = zeros  # makes what is sent and received
        self.buckets: list[Bucket] = []
        self.samples = 1.0  # how many samples this worker's gradient stands for; with none it counts as having none
        self.step_samples = 1.0  # the same for the step under way: what it was when its backward began
        self.steps = 0
        self.before_exchange: Callable[[], None] = lambda: None  # the run's; see join.py
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_change: Callable[[Change], None] = lambda _: None  # what is trained is not what it was
        self.scale_of: Callable[[Bucket], float] = lambda _: 1.0  # for the samples of this step
        self._on_bucket: Callable[[Bucket], None] = lambda _: None
        self._places: dict[nn.Parameter, tuple[Bucket, int]] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._forward_hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._paused = False
        self.in_backward = False  # one whose gradients are to be exchanged
        self._next = 0  # the bucket to be handed on next
        self._steps_with: dict[nn.Parameter, int] = {}  # with which buckets that are made anew begin
        self.looked = False  # for a change, before the forward of this step
        self._change = Change()  # found when this backward began, to be taken in when it ends
        self.exchanged = False  # since the last step

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The first, which is usually the only one."""
        return self.optimizers.every[0]

    # --- buckets -----------------------------------------------------------------------------------------------------

    def make_buckets(self, nbytes: int, on_bucket: Callable[[Bucket], None], first: int | None = None) -> None:
        """Cut the parameters into buckets of `nbytes` or a little more (0: one per tensor) and watch their gradients.

        The first may be smaller, so that there is something to send soon. Called again, it cuts anew.
        """
        _remove(self._hooks)
        self._leave_buckets()
        self._on_bucket = on_bucket
        groups = {p: i for i, group in enumerate(self.optimizers.groups) for p in group["params"]}
        named = self.parameters.collect()
        for parameters in _cut(list(reversed(named)), groups, nbytes, nbytes if first is None else first):
            self._add_bucket([(named[p] or f"extra.{i}", p) for i, p in enumerate(parameters)], groups)
            self.buckets[-1].steps = min(self._steps_with.get(p, self.steps) for p in parameters)
        self._hooks += [_watch(parameter, self._on_gradient) for parameter in self._places]
        self.parameters.settle()

    def keep_hooks_last(self) -> None:
        """A hook that the loop has put on a parameter after ours may still change the gradient: ours go behind it."""
        for index, (parameter, handle) in enumerate(zip(self._places, self._hooks, strict=True)):
            hooks = parameter._post_accumulate_grad_hooks  # torch has no public way to ask
            if next(reversed(hooks)) != handle.id:
                handle.remove()
                self._hooks[index] = _watch(parameter, self._on_gradient)

    def _leave_buckets(self) -> None:
        self.restore()
        self._steps_with.update({p: bucket.steps for p, (bucket, _) in self._places.items()})
        self.buckets, self._places = [], {}

    def find_change(self) -> Change:
        """Since the buckets were made; none where there are no buckets."""
        return self.parameters.find_change() if self.buckets else Change()

    def release(self) -> None:
        """Take off everything that an algorithm has put on, so that another one can be set up; weights, gradients and
        what the run has put on stay."""
        self.close()
        self._leave_buckets()
        self.in_backward, self._change = False, Change()
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
        if not self.in_backward:
            self._change = Change() if self.looked else self.find_change()
            if not self._change:
                self._begin()
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        if self._change:
            return
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
        self.in_backward, self._next, self.step_samples = True, 0, self.samples
        self.restore()  # where there was no step in between
        for bucket in self.buckets:
            bucket.begin(self.scale_of(bucket) if self.samples else 0.0)

    def _hand_on(self) -> None:
        self._on_bucket(self.buckets[self._next])
        self._next += 1

    def _end(self) -> None:
        """Backward is over. If there was a change, its gradients are as autograd has left them: the buckets are made
        anew and take them in from there."""
        if self._change:
            self.on_change(self._change)  # which releases what there was
        self.finish()

    def finish(self) -> None:
        """Backward is over (or never came): hand on what is left, and return when all of it is exchanged."""
        if not self.in_backward:
            self._begin()
        try:
            for bucket in self.buckets:
                bucket.fill_missing()
            while self._next < len(self.buckets):
                self._hand_on()
            self.on_end()
        finally:
            self.in_backward = False
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
        """The optimizers' own step on everything."""
        self.optimizers.step()

    def load_steps(self, steps: int, of_buckets: list[int]) -> None:
        """As they were; buckets that are others now count the run's."""
        self.steps, self._steps_with = steps, {}
        known = of_buckets if len(of_buckets) == len(self.buckets) else [steps] * len(self.buckets)
        for bucket, count in zip(self.buckets, known, strict=True):
            bucket.steps = count

    def due(self) -> list[Bucket]:
        """The buckets that the step under way is for."""
        return [bucket for bucket in self.buckets if self.optimizers.steps_on(bucket.group)]

    def count_step(self) -> None:
        """A step is over."""
        for bucket in self.due():
            bucket.steps += 1
        self.steps += 1
        self.exchanged = self.looked = False

    def local_step(self, bucket: Bucket) -> None:
        """The optimizer's own step on one bucket's parameters."""
        if bucket.group is not None:
            self.optimizers.step_on(bucket.group, bucket.parameters)

    def settings_of(self, bucket: Bucket) -> dict[str, Any] | None:
        """The bucket's group as it is now, to step with later."""
        return None if bucket.group is None else self.optimizers.settings(bucket.group)

    def step_elsewhere(self, bucket: Bucket, settings: dict[str, Any]) -> None:
        """The same on any thread, with these settings and the bucket's gradients, whatever becomes of `grad` meanwhile;
        the user's optimizer is not touched but its state."""
        assert bucket.group is not None
        for position, shadow in enumerate(bucket.shadows):
            shadow.grad = bucket.views[position] if bucket.is_used(position) else None
        self.optimizers.step_elsewhere(bucket.group, settings, bucket.parameters, bucket.shadows)

    def steps_alone(self) -> bool:
        """Whether stepping on some parameters at a time is the same as on all at once, for everybody who looks."""
        return self.optimizers.scaler is None and self.optimizers.steps_alone()

    # --- steps of an algorithm with update=bucket --------------------------------------------------------------------

    def require_own_steps(self) -> None:
        if self.optimizers.has_hooks():
            raise UserError(
                "update=bucket steps during backward, on some parameters at a time, and the optimizer has hooks that "
                "expect one whole step; use update=whole"
            )
        if not self.optimizers.steps_alone():
            kinds = ", ".join(type(each).__name__ for each in self.optimizers.every)
            raise UserError(
                f"update=bucket steps on some parameters at a time, and {kinds} is none of torch's optimizers"
            )

    def spend(self, in_use: Container[int] = ()) -> None:
        """The gradients have been stepped with, or are about to be in the buckets that are in use."""
        for bucket in self.buckets:
            bucket.spend(bucket.index in in_use)

    def restore(self) -> None:
        """Plain gradients again."""
        for bucket in self.buckets:
            bucket.restore()

    def refuse_second_backward(self) -> None:
        if self.exchanged:
            raise UserError(
                "update=bucket has made its step in the backward before this one; put all but the last one of a step "
                "into run.accumulate(), or use update=whole"
            )

    def note_own_steps(self) -> None:
        """The steps have been made during backward."""
        self.restore()
        scaler, optimizers = self.optimizers.scaler, self.optimizers
        if scaler is not None and scaler.is_enabled():
            raise UserError("update=bucket steps before a GradScaler could look at all gradients; use update=whole")
        if len(optimizers.chosen) < len(optimizers.every):
            raise UserError("update=bucket has stepped with every optimizer during backward; use update=whole")
        self.require_own_steps()
        for each in optimizers.every:
            each._opt_called = True  # type: ignore[attr-defined]  # or schedulers warn

    # --- the next forward --------------------------------------------------------------------------------------------

    def watch_forward(self, on_forward: Callable[[list[int]], None], on_copy: Callable[[], None] | None = None) -> None:
        """Before a module's forward, hand on which buckets its own parameters lie in; and hear of copies of the model.

        Some modules inside are never called, since the one around them uses their parameters: those come with its own.
        Evaluation may go other ways than training (torch's transformers do), so all buckets come with its first module.
        """
        called: set[nn.Module] = set()
        refuse = torch.compiler.disable(_refuse_compiled_model)  # or the refusal would be compiled away
        read: dict[nn.Module, list[nn.Parameter]] = {}

        def before(module: nn.Module, _: Any) -> None:
            if torch.compiler.is_compiling():
                refuse()
                return
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
        hook = Hook(before, on_copy)
        self._forward_hooks = [m.register_forward_pre_hook(hook, prepend=True) for m in self.model.modules()]

    def watched(self) -> set[int]:
        """The buckets that nothing but forward reads: the optimizer steps on all of it, and modules own all of it."""
        owned = set(self.model.parameters())
        return {b.index for b in self.buckets if b.group is not None and owned.issuperset(b.parameters)}

    def close(self) -> None:
        self.restore()
        _remove(self._hooks)
        _remove(self._forward_hooks)


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


def _refuse_compiled_model() -> None:
    raise UserError("wait=forward waits in front of every module, which a compiled model runs past; use wait=backward")


def _watch(parameter: nn.Parameter, on_gradient: Callable[[Tensor], None]) -> torch.utils.hooks.RemovableHandle:
    """Also one that is frozen for the moment, where torch takes no hooks."""
    trained = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        handle: torch.utils.hooks.RemovableHandle = parameter.register_post_accumulate_grad_hook(on_gradient)
        return handle
    finally:
        parameter.requires_grad_(trained)
