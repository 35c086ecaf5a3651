"""`distribute(model, optimizer, "ddp")` -> a `Run`: the user's loop keeps its shape, and `run.step()` stands where
`optimizer.step()` stood, since the order around the step is the algorithm.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import warnings
import weakref
import zlib
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.comm.base import SILENCE, Comm, Lane
from tutti.comm.metered import Metered, metered
from tutti.comm.rendezvous import WireOptions, check_timeout, connect
from tutti.consensus import Consensus, by_type
from tutti.errors import UserError
from tutti.replica import Replica
from tutti.spec import parse

_in_use: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # optimizers of runs that are not closed


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    algorithm: str | Algorithm = "ddp",
    *,
    comm: Comm | None = None,
    group: dist.ProcessGroup | None = None,
    wire: str | None = None,
    interface: str | None = None,
    timeout: float = SILENCE,
) -> Run:
    """Train this model together with the other workers of torch's process group where one is initialised, or of the
    launcher (torchrun, mpirun, Slurm, tutti); alone without any of them.

    `group` (of torch.distributed.new_group) trains with its members only; only they call this. `timeout` says for how
    many seconds a silent worker is waited for; one that dies is noticed at once.

    The wire is ours ("shared": memory within a machine, sockets between machines; "tcp": sockets only) for a model on
    the CPU, and torch's process group ("torch": nccl) for one on a GPU.
    """
    if isinstance(algorithm, str):
        algorithm = parse(algorithm, Algorithm)
    first = next(model.parameters(), None)
    if first is None:
        raise UserError("the model has no parameters: there is nothing to train")
    check_timeout(timeout)
    if comm is not None:
        if group is not None:
            raise UserError("comm= and group= both say who the workers are: give one of them")
        return Run(model, optimizer, replace(algorithm), comm, owns_comm=False)
    kind = first.device.type
    wire = wire or ("torch" if kind == "cuda" else "shared")
    comm = connect(WireOptions(wire, interface, None, timeout, kind), group=group)
    try:
        return Run(model, optimizer, replace(algorithm), comm, owns_comm=True)
    except BaseException:
        comm.close()
        raise


_GOODBYE = 60.0  # seconds for what is under way when a script ends without close(): the others may still need it


class Run:
    """A training run of this worker; use it plainly (it is closed at exit) or in a `with`."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, algorithm: Algorithm, comm: Comm, owns_comm: bool
    ) -> None:
        self._device = next(model.parameters()).device
        check(algorithm, comm.wire, comm.size, self._device)
        if optimizer in _in_use:
            raise UserError("this optimizer is distributed already; close() that run first")
        self.algorithm = algorithm
        self.comm: Metered = comm if isinstance(comm, Metered) else metered(comm)
        self.meter, self.clock = self.comm.meter, self.comm.clock
        self._make_equal(_tensors(model, optimizer))
        self.lane = Lane(self.comm.fork("lane"), self._device)
        self._finalizer = weakref.finalize(
            self, _close_plainly, self.lane, self.comm if owns_comm else None, os.getpid()
        )
        self.replica = Replica(model, optimizer, self.comm.zeros)
        self.replica.on_end = self._end_of_backward
        self._consensus = Consensus(algorithm, self.replica, self.comm)
        self.exposed = 0.0  # seconds the loop has waited for communication, since the last `take_times`
        self._waited = 0.0  # those of them that were for the lane
        self._first_batch, self._compared = b"", False
        self._closed = False
        try:
            algorithm.setup(self.replica, self.lane)
        except BaseException:
            self.replica.close()
            self._finalizer()
            raise
        self.model = algorithm.model(self.replica)
        _in_use.add(optimizer)
        self._hooks = [
            optimizer.register_step_pre_hook(self._refuse_foreign_step),
            model.register_forward_pre_hook(self._remember_first_batch, with_kwargs=True),
        ]

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def samples(self) -> float:
        """How many samples this worker's next gradient stands for; set it before backward when shares differ.

        Any unit will do, as long as it is the same on all workers: only ratios count.
        """
        return self.replica.samples

    @samples.setter
    def samples(self, count: float) -> None:
        if not 0 < count < math.inf:
            raise UserError(f"run.samples must be positive, not {count}")
        self.replica.samples = float(count)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Update the weights; with autocast hand the GradScaler in, and call its update() afterwards as usual."""
        self._consensus.refuse("a step")
        if self.replica.buckets and not self.replica.exchanged:
            self.replica.finish()  # this worker had no backward: take part with nothing
        if not self._compared:
            self._compare_first_batches()
        self.replica.scaler = scaler
        self.algorithm.step(self.replica)
        if self.replica.buckets:
            self._finish()  # what the step has put on the lane
        self.replica.exchanged = False
        self.replica.steps += 1

    def accumulate(self) -> AbstractContextManager[None]:
        """`with run.accumulate(): loss.backward()` adds gradients up; the first backward outside exchanges the sum."""
        return self.algorithm.accumulate(self.replica)

    def mean(self, value: float | Tensor) -> float | Tensor:
        """The mean over all workers of a number or a tensor."""
        if isinstance(value, Tensor):
            exact = value if value.is_floating_point() or value.is_complex() else value.double()
            total = exact.detach().clone(memory_format=torch.contiguous_format)
            self.comm.all_reduce(total, tag="metrics/mean")
            return total / self.size
        return float(self.sums([value])[0]) / self.size

    def sums(self, values: list[float]) -> Tensor:
        """The sums over all workers of a few numbers, in one exchange."""
        total = torch.tensor(values, dtype=torch.float64)
        self.comm.all_reduce(total, tag="metrics/mean")
        return total

    def any(self, flag: bool) -> bool:
        """Whether any worker says so."""
        return bool(self.sums([float(flag)])[0] > 0)

    def take_times(self) -> tuple[float, float]:
        """(hidden, exposed) seconds of communication since the last call."""
        elsewhere = self.algorithm.take_waited()
        exposed, self.exposed = self.exposed + elsewhere, 0.0
        waited, self._waited = self._waited + elsewhere, 0.0
        return max(0.0, self.lane.take_busy() - waited), exposed

    # --- the mean of all workers -------------------------------------------------------------------------------------

    def consensus(self) -> AbstractContextManager[nn.Module]:
        """`with run.consensus() as model:` the model is the mean of all workers', to be evaluated; collective.

        Weights and floating buffers are means, other buffers worker 0's. Afterwards everything is, bit by bit, as it
        was. Exchanges under way are waited for, which changes no result; `model.training` is left alone. Where all
        workers are equal anyway nothing is sent. How batch-norm statistics are treated: see consensus.py.
        """
        return self._consensus.hold()

    def consensus_distance(self) -> float:
        """sqrt(mean_i |x_i - mean|^2) over the trained weights: how far the workers are apart; collective.

        It sends the model as `consensus` does; inside `with run.consensus()`, where the mean is there, one number.
        """
        return self._consensus.distance()

    def consensus_state_dict(self) -> dict[str, Any]:
        """The state_dict of the mean model, as a copy on the CPU, to be saved by one of the workers; collective."""
        return self._consensus.state_dict()

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit by bit: collective, and nothing is in flight afterwards."""
        self._consensus.refuse("run.state_dict()")
        self.algorithm.drain()
        return {
            "spec": str(self.algorithm),
            "workers": self.size,
            "steps": self.replica.steps,
            "model": self.replica.model.state_dict(),
            "optimizer": self.replica.optimizer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._consensus.refuse("loading a state")
        if not {"spec", "workers", "steps", "model", "optimizer", "algorithm"} <= set(state):
            raise UserError(f"this is no state of run.state_dict(): it holds {', '.join(map(str, state)) or 'nothing'}")
        if state["spec"] != str(self.algorithm):
            raise UserError(f"this state is of '{state['spec']}' and cannot continue '{self.algorithm}'")
        if state["workers"] != self.size:
            raise UserError(f"this state is of {state['workers']} workers and cannot continue with {self.size}")
        self.algorithm.drain()
        self.replica.model.load_state_dict(state["model"])
        self.replica.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would step in it itself
        self.algorithm.load_state_dict(state["algorithm"])
        self.replica.steps = state["steps"]

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take the hooks off and let go of the wire; the model and the optimizer are the user's again."""
        try:
            if not self._closed:
                self.algorithm.drain()  # which may be the first to hear that the last step failed
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._closed:
            return
        self._closed = True
        _in_use.discard(self.replica.optimizer)
        for hook in self._hooks:
            hook.remove()
        self.replica.close()
        self.algorithm.close()
        self._finalizer()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.lane.close(0.0)  # the others hear it at once
            self._let_go()

    # --- behind the loop ---------------------------------------------------------------------------------------------

    def _end_of_backward(self) -> None:
        self._consensus.refuse("a backward")
        self._finish()
        begun = self.clock.now()
        if self.size > 1 and self.algorithm.buffers != "local":
            self._agree_on_buffers()
        self.exposed += self.clock.now() - begun

    def _finish(self) -> None:
        """Wait for what the algorithm has under way; all of this is exposed."""
        begun = self.clock.now()
        self.algorithm.finish()
        seconds = self.clock.now() - begun
        self._waited += seconds
        self.exposed += seconds

    def _agree_on_buffers(self) -> None:
        """All buffers of one type in one message; what cannot be averaged (counters) is worker 0's."""
        for same in by_type(self.replica.model.buffers()):
            flat = torch.cat([buffer.reshape(-1) for buffer in same])
            if self.algorithm.buffers == "broadcast" or not flat.is_floating_point():
                self.comm.broadcast(flat, tag="buffers/broadcast")
            else:
                self.comm.all_reduce(flat, tag="buffers/average")
                flat /= self.size
            for buffer, part in zip(same, flat.split([b.numel() for b in same]), strict=True):
                buffer.copy_(part.view(buffer.shape))

    def _make_equal(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Worker 0's parameters and buffers, everywhere; a model of another shape is refused before anything hangs."""
        shape = ";".join(f"{name}{tuple(t.shape)}{t.dtype}{t.requires_grad}" for name, t in tensors)
        digests = self.comm.gather_bytes(b"%d %d" % (zlib.crc32(shape.encode()), len(tensors)))
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise UserError(f"the model of worker {rank} has other parameters than that of worker 0")
        for _, tensor in tensors:
            _in_place(tensor.detach(), lambda t: self.comm.broadcast(t, tag="weights/start"))

    def _remember_first_batch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._first_batch and module.training:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.layout == torch.strided]
            flat = [tensor.detach().cpu().reshape(-1) for tensor in tensors]
            checks = [zlib.crc32(t.view(torch.uint8).numpy().data) for t in flat]
            self._first_batch = ",".join(map(str, checks)).encode()

    def _compare_first_batches(self) -> None:
        self._compared = True
        self._hooks[-1].remove()  # the one that remembers
        digests = set(self.comm.gather_bytes(self._first_batch, tag="control/first-batch"))
        if self.size > 1 and len(digests) == 1 and digests != {b""} and self.rank == 0:
            warnings.warn(
                f"all {self.size} workers saw the same first batch: give each its own share of the data "
                "(a DistributedSampler, or tutti.EpochSampler)",
                stacklevel=3,
            )

    def _refuse_foreign_step(self, *_: Any) -> None:
        if not self.replica.stepping:
            raise UserError("call run.step() where optimizer.step() stood: the order around the step is the algorithm")


def check(algorithm: Algorithm, wire: str, workers: int, device: torch.device) -> None:
    """Refuse what cannot work together, before anything is set up."""
    if algorithm.one_worker and workers > 1:
        raise UserError(f"'{algorithm}' runs on one worker and there are {workers}; use ddp, or start one")
    if algorithm.needs_process_group and wire == "threads":
        raise UserError(
            f"'{algorithm}' needs torch's process group, which threads do not have; it runs on processes only (tutti "
            "run and compare: --engine processes)"
        )
    if wire == "threads" and workers > 1 and device.type == "cuda":
        raise UserError("threads share one backward thread per CUDA device and would deadlock; use --engine processes")
    algorithm.check(workers)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    """All that has to be equal on every worker: the model's, and what only the optimizer knows."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    known = {id(tensor) for _, tensor in named}
    return named + [("", p) for group in optimizer.param_groups for p in group["params"] if id(p) not in known]


def _in_place(tensor: Tensor, operate: Any) -> None:
    """Operate on the tensor's memory, or on a contiguous copy that is put back."""
    if tensor.is_contiguous():
        operate(tensor)
    else:
        copy = tensor.contiguous()
        operate(copy)
        tensor.copy_(copy)


def _close_plainly(lane: Lane, comm: Comm | None, process: int) -> None:
    """At exit or when nobody has the run any more; not in a forked child, which would speak for its parent."""
    if threading.current_thread().name.startswith("tutti-lane") or process != os.getpid():
        return
    lane.close(_GOODBYE)
    lane.comm.close()
    if comm is not None:
        comm.close()
