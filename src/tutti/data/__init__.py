"""Data sets and samplers. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutti.data.dirichlet_sampler import DirichletSampler

__all__ = ["DirichletSampler"]


def __getattr__(name: str) -> Any:
    if name == "DirichletSampler":
        from tutti.data.dirichlet_sampler import DirichletSampler

        return DirichletSampler
    raise AttributeError(f"module 'tutti.data' has no attribute '{name}'")
