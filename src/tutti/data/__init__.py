"""Data sets and samplers. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutti.data.dirichlet_sampler import DirichletSampler
    from tutti.data.distributed_sampler import DistributedSampler

__all__ = ["DirichletSampler", "DistributedSampler"]

_HOMES = {
    "DirichletSampler": "tutti.data.dirichlet_sampler",
    "DistributedSampler": "tutti.data.distributed_sampler",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tutti.data' has no attribute '{name}'")
