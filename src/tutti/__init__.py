"""Tutti: data-parallel PyTorch training with every way for workers to agree. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tutti.errors import RunFailed, UserError

if TYPE_CHECKING:
    from tutti import data
    from tutti.engine import Run, distribute
    from tutti.sampling import EpochSampler

__version__ = "0.1.0"
__all__ = ["EpochSampler", "Run", "RunFailed", "UserError", "__version__", "data", "distribute"]

_HOMES = {"Run": "tutti.engine", "distribute": "tutti.engine", "EpochSampler": "tutti.sampling"}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "data":
        return importlib.import_module("tutti.data")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tutti' has no attribute '{name}'")
