"""The functions that a run hooks on the user's modules and optimizers: known as ours, and left out of every copy.

A module that is copied, pickled or saved takes its hooks along. Ours lead to the run, with its threads and sockets; in
a copy they do nothing, and a saved module can be loaded where Tutti is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer


class Hook:
    """A function that is not copied; `on_copy` hears when what it is hooked on is."""

    def __init__(self, call: Callable[..., Any], on_copy: Callable[[], None] | None = None) -> None:
        self._call, self._on_copy = call, on_copy or _nothing()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Any:
        self._on_copy()
        return _nothing()

    def __reduce__(self) -> Any:
        self._on_copy()
        return getattr, (nullcontext(), "__exit__")


def _nothing() -> Callable[..., None]:
    """Takes any arguments, returns None, and comes from the standard library."""
    return nullcontext().__exit__


def has_foreign_hooks(optimizer: Optimizer) -> bool:
    """Whether somebody else has hooks around this optimizer's step, or around that of all optimizers.

    torch has no public way to ask.
    """
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    every = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return any(not isinstance(hook, Hook) for hooks in (*own, *every) for hook in hooks.values())
