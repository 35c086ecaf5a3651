"""Warns when all workers train on the same data: their first batches are compared once, at the first step."""

from __future__ import annotations

import warnings
import zlib
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from tutti.comm.base import Comm
from tutti.hooks import Hook


class FirstBatch:
    """A checksum of what the model was called with first, in training."""

    def __init__(self, model: nn.Module) -> None:
        self._checksum = b""
        self._hook = model.register_forward_pre_hook(Hook(self._remember), with_kwargs=True)
        self._compared = False

    def compare(self, comm: Comm) -> None:
        """At the first step; collective."""
        if self._compared:
            return
        self._compared = True
        self.forget()
        checksums = set(comm.gather_bytes(self._checksum, tag="control/first-batch"))
        if comm.size > 1 and len(checksums) == 1 and checksums != {b""} and comm.rank == 0:
            warnings.warn(
                f"all {comm.size} workers saw the same first batch: give each its own share of the data "
                "(a DistributedSampler, or tutti.EpochSampler)",
                stacklevel=3,
            )

    def forget(self) -> None:
        self._hook.remove()

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._checksum or not module.training or torch.compiler.is_compiling():
            return
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.layout == torch.strided]
        flat = [tensor.detach().cpu().reshape(-1) for tensor in tensors]
        with suppress(RuntimeError):  # inside a transform of torch.func tensors have no memory
            self._checksum = ",".join(str(zlib.crc32(t.view(torch.uint8).numpy().data)) for t in flat).encode()
