"""What a checkpoint holds of one worker besides the run's own state, as plain data that `weights_only` loads; and what
can be made of the states of all workers for a run of another size or algorithm.

    workers equal     worker 0's weights and optimizer state, bit by bit
    workers differ    weights, floating buffers, floating optimizer state: the mean of all workers, summed in float64
                      everything else: worker 0's
    state that a worker's optimizer has not made yet counts as zero
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutti.errors import UserError

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


def make_plain(value: Any, where: str) -> Any:
    """The same with nothing in it that cannot be loaded safely; numbers of numpy become Python's."""
    if type(value) in _ATOMS or isinstance(value, Tensor):
        return value
    if isinstance(value, np.generic):
        return value.item()
    for kind in (int, float, str):
        if isinstance(value, kind):  # of a subclass
            return kind(value)
    if isinstance(value, OrderedDict):
        made = OrderedDict((make_plain(k, where), make_plain(v, f"{where}[{k!r}]")) for k, v in value.items())
        made.__dict__.update(value.__dict__)  # a state_dict carries the versions of its modules
        return made
    if isinstance(value, dict):
        return {make_plain(k, where): make_plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        made_list = [make_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return (
            made_list if isinstance(value, list) else tuple(made_list) if isinstance(value, tuple) else set(made_list)
        )
    raise UserError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold: it takes "
        "numbers, text, tensors, lists and dicts of them, and objects with state_dict and load_state_dict"
    )


# --- random states ---------------------------------------------------------------------------------------------------


def take_random_states(device: torch.device) -> dict[str, Any]:
    """Of Python, numpy's global generator, torch's, and the worker's CUDA device."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [
            kind,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Any], device: torch.device) -> None:
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


# --- does it fit ---------------------------------------------------------------------------------------------------


def check_model(path: Path, saved: dict[str, Any], current: dict[str, Any]) -> None:
    for name in dict.fromkeys([*current, *saved]):
        if name not in saved:
            raise UserError(f"{path} is of another model: it has no '{name}'")
        if name not in current:
            raise UserError(f"{path} is of another model: '{name}' is not in this one")
        looks = [_look(state[name]) for state in (saved, current)]
        if looks[0] != looks[1]:
            raise UserError(f"{path} is of another model: '{name}' is {looks[0]} there and {looks[1]} here")


def _look(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{'x'.join(map(str, value.shape)) or 'one number'} of {str(value.dtype).removeprefix('torch.')}"


def check_optimizers(path: Path, saved: list[dict[str, Any]], current: list[dict[str, Any]]) -> None:
    counts = [
        [[len(group["params"]) for group in each["param_groups"]] for each in states] for states in (saved, current)
    ]
    if counts[0] != counts[1]:
        raise UserError(
            f"{path} is of another optimizer: its parameter groups have {_count(counts[0])} tensors, and here "
            f"{_count(counts[1])}"
        )
    for one, other in zip(saved, current, strict=True):
        settings = [set(state["param_groups"][0]) - {"initial_lr"} for state in (one, other)]
        if settings[0] != settings[1]:
            name = sorted(settings[0] ^ settings[1])[0]
            raise UserError(f"{path} is of another kind of optimizer: only one of the two has the setting '{name}'")


def check_trained(state: dict[str, Any], current: list[str]) -> None:
    """What an algorithm remembers lies as the parameters do that it trained: with others it would be cut elsewhere."""
    saved = state.get("trained", current)
    if saved == current or not _has_tensor(state["algorithm"]):
        return
    for name in dict.fromkeys([*saved, *current]):
        if (name in saved) != (name in current):
            where = ("there", "not here") if name in saved else ("here", "not there")
            what = f"'{name}' is trained {where[0]} and {where[1]}"
            break
    else:
        what = "parameters are trained in another order here"
    raise UserError(
        f"this state of '{state['spec']}' does not fit: {what}; load first, and freeze, unfreeze or add layers then"
    )


def _has_tensor(state: Any) -> bool:
    if isinstance(state, dict | list | tuple):
        return any(map(_has_tensor, state.values() if isinstance(state, dict) else state))
    return isinstance(state, Tensor)


def _count(optimizers: list[list[int]]) -> str:
    return " and ".join(" + ".join(map(str, groups)) for groups in optimizers)


# --- one state out of all workers' -----------------------------------------------------------------------------------


def merge(states: Iterable[Any]) -> tuple[Any, bool]:
    """One state out of those of all workers, read one after another; and whether they differed."""
    merger = _Merger()
    for state in states:
        merger.add(state)
    return merger.result(), merger.differ


class _Merger:
    """Keeps the first state and, by path, what the others' floating tensors add to it."""

    def __init__(self) -> None:
        self._count, self._first = 0, None
        self._sums: dict[tuple[Any, ...], Tensor] = {}
        self._firsts: dict[tuple[Any, ...], Tensor] = {}
        self._different: set[tuple[Any, ...]] = set()

    @property
    def differ(self) -> bool:
        return bool(self._different)

    def add(self, state: Any) -> None:
        if self._count == 0:
            self._first = _copy(state)
        found = dict(_floats(state))
        for path, tensor in found.items():
            first = self._firsts.setdefault(path, tensor if self._count == 0 else torch.zeros_like(tensor))
            if not _same(first, tensor):
                self._different.add(path)
            wide = tensor.to(torch.promote_types(tensor.dtype, torch.float64))
            self._sums[path] = self._sums[path] + wide if path in self._sums else wide
        self._different |= self._firsts.keys() - found.keys()
        self._count += 1

    def result(self) -> Any:
        for path in self._different:
            mean = (self._sums[path] / self._count).to(self._firsts[path].dtype)
            _put(self._first, path, mean)
        return self._first


def _floats(state: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Tensor]]:
    """Every floating tensor of a nested state, with where it is."""
    if isinstance(state, Tensor):
        return [(path, state)] if state.is_floating_point() or state.is_complex() else []
    if isinstance(state, dict):
        return [found for key, value in state.items() for found in _floats(value, (*path, key))]
    if isinstance(state, list):
        return [found for i, value in enumerate(state) for found in _floats(value, (*path, i))]
    return []


def _put(state: Any, path: tuple[Any, ...], tensor: Tensor) -> None:
    *way, last = path
    for key in way:
        state = state.setdefault(key, {}) if isinstance(state, dict) else state[key]
    state[last] = tensor


def _copy(state: Any) -> Any:
    """New containers around the same tensors, all of which can be changed."""
    if isinstance(state, dict):
        made = type(state)((key, _copy(value)) for key, value in state.items())
        if isinstance(state, OrderedDict):
            made.__dict__.update(state.__dict__)
        return made
    return [_copy(value) for value in state] if isinstance(state, list) else state


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit, so that equal NaNs are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
