"""The optimizers of one run, stepped as a whole or on some parameters at a time.

Their parameter groups are counted through: group 0 is the first one of the first optimizer, and so on. A run usually
has one optimizer; a GAN has two that step in turn, Muon comes with AdamW for what is no matrix.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tutti.errors import UserError
from tutti.hooks import has_foreign_hooks

Group = dict[str, Any]


class Optimizers:
    """All of them, and which of them step now."""

    def __init__(self, every: Sequence[torch.optim.Optimizer]) -> None:
        self.every = tuple(every)
        self.chosen = self.every  # those that the step under way is for
        self.scaler: torch.amp.GradScaler | None = None
        self.stepping = False  # inside an optimizer's step, called from here
        self._shadows: dict[torch.optim.Optimizer, torch.optim.Optimizer] = {}

    # --- what they hold ----------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[Group]:
        return [group for each in self.every for group in each.param_groups]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.groups for p in group["params"]]

    def owner(self, group: int) -> torch.optim.Optimizer:
        """The optimizer that has this group."""
        return self._locate(group)[0]

    def state(self, parameter: nn.Parameter) -> Group:
        """What its optimizer remembers of this parameter; nothing where none knows it."""
        for each in self.every:
            if parameter in each.state:
                found: Group = each.state[parameter]
                return found
        return {}

    def pop_state(self, parameter: nn.Parameter) -> Group:
        """The same, and it is forgotten."""
        return next((each.state.pop(parameter) for each in self.every if parameter in each.state), {})

    def state_to_write(self, parameter: nn.Parameter) -> Group:
        """The same, made where there is none yet."""
        for each in self.every:
            if any(parameter is p for group in each.param_groups for p in group["params"]):
                made: Group = each.state[parameter]
                return made
        raise KeyError("no optimizer has this parameter")

    def state_dict(self) -> Any:
        """That of the one, or a list."""
        states = [each.state_dict() for each in self.every]
        return states[0] if len(states) == 1 else states

    def load_state_dict(self, state: Any) -> None:
        states = state if isinstance(state, list) else [state]
        if len(states) != len(self.every):
            raise UserError(f"this state is of {len(states)} optimizers, and this run has {len(self.every)}")
        for each, own in zip(self.every, states, strict=True):
            each.load_state_dict(copy.deepcopy(own))  # torch would step in it itself

    # --- steps -------------------------------------------------------------------------------------------------------

    @contextmanager
    def only(self, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
        """While this lasts, a step is for this one; None is all."""
        if optimizer is None:
            yield
            return
        if not any(optimizer is each for each in self.every):
            raise UserError("this optimizer is none of those handed to tutti.distribute(); step with one of them")
        self.chosen = (optimizer,)
        try:
            yield
        finally:
            self.chosen = self.every

    def steps_on(self, group: int | None) -> bool:
        """Whether the step under way is for this group's optimizer too."""
        return group is None or self.owner(group) in self.chosen

    def step(self) -> None:
        """Their own step, on everything."""
        for each in self.chosen:
            self._step(each)

    def step_on(self, group: int, parameters: list[nn.Parameter]) -> None:
        """The optimizer's own step on some parameters of one of its groups."""
        owner, index = self._locate(group)
        groups = owner.param_groups
        owner.param_groups = [{**groups[index], "params": parameters}]
        try:
            self._step(owner)
        finally:
            owner.param_groups = groups

    def settings(self, group: int) -> Group:
        """A group as it is now, to step with later: a schedule changes it, tensors even in place."""
        owner, index = self._locate(group)
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in owner.param_groups[index].items()}

    def step_elsewhere(
        self, group: int, settings: Group, parameters: list[nn.Parameter], shadows: list[Tensor]
    ) -> None:
        """The same as `step_on` from any thread, with these settings and with the gradients of the shadow parameters;
        the user's optimizer is not touched but its state."""
        owner = self.owner(group)
        shadow = self._shadows.get(owner) or self._shadows.setdefault(owner, _copy_without_hooks(owner))
        state, pairs = owner.state, list(zip(parameters, shadows, strict=True))
        shadow.state = defaultdict(dict, {s: state[p] for p, s in pairs if p in state})
        shadow.param_groups = [{**settings, "params": shadows}]
        shadow.step()
        state.update({p: shadow.state[s] for p, s in pairs if s in shadow.state})

    def plain_settings(self) -> list[Group]:
        """The hyper-parameters of every group that can be written as JSON: numbers, switches and tuples of them."""
        groups = [{key: _plain(value) for key, value in group.items() if key != "params"} for group in self.groups]
        return [{key: value for key, value in group.items() if _is_plain(value)} for group in groups]

    def steps_alone(self) -> bool:
        """Whether a parameter's step needs that parameter only and is nobody else's business: torch's own optimizers
        (one from elsewhere may look at all parameters at once, or count its steps) without hooks of the user, which
        run once per step."""
        torchs_own = all(type(each).__module__.startswith("torch.optim") for each in self.every)
        return torchs_own and not self.has_hooks()

    def has_hooks(self) -> bool:
        """Whether the user has hooks around the step of one of them."""
        return any(has_foreign_hooks(each) for each in self.every)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        self.stepping = True
        try:
            if self.scaler is not None:
                _require_gradient(optimizer, self.scaler)
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        finally:
            self.stepping = False

    def _locate(self, group: int) -> tuple[torch.optim.Optimizer, int]:
        for each in self.every:
            if group < len(each.param_groups):
                return each, group
            group -= len(each.param_groups)
        raise IndexError("no optimizer has this group")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _is_plain(value: Any) -> bool:
    atom = value is None or isinstance(value, bool | int | float | str)
    return atom or (isinstance(value, list) and all(map(_is_plain, value)))


def _require_gradient(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    """torch's own message is an assertion about inf checks."""
    if scaler.is_enabled() and all(p.grad is None for g in optimizer.param_groups for p in g["params"]):
        raise UserError(
            "a GradScaler needs a gradient in every step, and this worker has none in this one (no backward, or "
            "run.samples = 0); use bfloat16 autocast, which needs no scaler, or ddp"
        )


def _copy_without_hooks(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """One of the same kind, with the flags that torch does not copy."""
    shadow = copy.copy(optimizer)
    for name, value in vars(optimizer).items():
        if name.startswith("_") and not hasattr(shadow, name):
            setattr(shadow, name, value)
    return shadow
