"""torch's own DistributedDataParallel inside our harness: the reference for speed and for results.

    g <- sum(g_i) / n    bucket by bucket while backward goes on
    x <- x - lr * g      or whatever the optimizer makes of g
    bytes per worker and step 2(n-1)/n * S, by the ring's formula

It runs on the backend's process group, whatever the wire, so its bytes do not pass our meter.

Paper: Li et al., "PyTorch distributed: experiences on accelerating data parallel training" (2020).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tutti.algorithms.base import Algorithm
from tutti.comm.base import Lane
from tutti.errors import UserError
from tutti.hooks import Hook
from tutti.replica import Replica
from tutti.spec import Bytes, Range


@dataclass
class TorchDDP(Algorithm):
    bucket: Annotated[Bytes, Range(least=1)] = 25 * 2**20
    unused: bool = False  # find_unused_parameters

    buffers: ClassVar[Literal["broadcast", "average", "local"]] = "local"  # DDP broadcasts them itself
    needs_process_group: ClassVar[bool] = True
    by_backend: ClassVar[bool] = True
    same_steps: ClassVar[bool] = True
    no_join: ClassVar[str] = "use torch's own torch.distributed.algorithms.join.Join([run.model]), or ddp"

    def setup(self, replica: Replica, lane: Lane) -> None:
        self._comm = lane.comm.native
        device = next(replica.model.parameters()).device
        self._wrapped = DistributedDataParallel(
            replica.model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=self._comm.group,
            bucket_cap_mb=self.bucket / 2**20,
            find_unused_parameters=self.unused,
            gradient_as_bucket_view=True,
        )
        self._forwarded = False  # since the last step of all optimizers
        self._hooks = [
            self._wrapped.register_forward_pre_hook(Hook(self._note_forward)),
            replica.model.register_forward_pre_hook(Hook(self._refuse_plain_forward)),
        ]
        replica.parameters.collect()
        replica.parameters.settle()
        self._nbytes = sum(p.nbytes for p in replica.model.parameters() if p.requires_grad)

    def model(self, replica: Replica) -> nn.Module:
        return self._wrapped

    def _note_forward(self, *_: Any) -> None:
        self._forwarded = True

    def _refuse_plain_forward(self, module: nn.Module, _: Any) -> None:
        trains = module.training and torch.is_grad_enabled()
        if trains and not self._forwarded and not torch.compiler.is_compiling():
            raise _past_the_wrapper()

    def step(self, replica: Replica) -> None:
        if not self._forwarded and any(p.grad is not None for p in replica.model.parameters()):
            raise _past_the_wrapper()
        if change := replica.parameters.find_change():
            raise UserError(
                f"{change.what}, and 'torch-ddp' keeps to what it was set up with; close() the run and distribute "
                "again, or use ddp"
            )
        self._forwarded = len(replica.optimizers.chosen) < len(replica.optimizers.every)  # others may follow
        self._comm.note("gradients/ddp", 2 * (self._comm.size - 1) / self._comm.size * self._nbytes)
        replica.step()

    def accumulate(self, replica: Replica) -> AbstractContextManager[None]:
        return cast("AbstractContextManager[None]", self._wrapped.no_sync())

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def overlap_seconds(self) -> tuple[float, float] | None:
        data = self._wrapped._get_ddp_logging_data()
        total = data.get("avg_backward_comm_time", 0) / 1e9
        hidden = data.get("avg_backward_compute_comm_overlap_time", 0) / 1e9
        return (hidden, max(0.0, total - hidden)) if total > 0 else None


def _past_the_wrapper() -> UserError:
    return UserError(
        "'torch-ddp' wraps the model, and a forward went past it: call run.model(...), not the model itself"
    )
