"""`distribute(model, optimizer, "ddp")` -> a `Run`: the user's loop keeps its shape, and `run.step()` stands where
`optimizer.step()` stood, since the order around the step is the algorithm.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tutti.algorithms.base import Algorithm
from tutti.buffers import agree_on_buffers
from tutti.changes import Change
from tutti.checkpoint import load_run, save_run
from tutti.checkpoint_state import check_trained
from tutti.comm.base import SILENCE, Comm, Lane
from tutti.comm.metered import Metered, metered
from tutti.comm.rendezvous import WireOptions, check_timeout, connect
from tutti.consensus import Consensus
from tutti.errors import UserError
from tutti.first_batch import FirstBatch
from tutti.foreign_steps import claim, let_go
from tutti.guard import EVERY, Guard, read_interval
from tutti.hooks import Hook
from tutti.inputs import (
    check_flag,
    check_model,
    check_number,
    check_samples,
    check_scaler,
    read_algorithm,
    read_optimizers,
)
from tutti.join import Join
from tutti.operations import Operations
from tutti.optimizers import Optimizers
from tutti.replica import Replica
from tutti.setup_check import collect, describe, make_equal
from tutti.watch import Watch, watch

_open: weakref.WeakSet[Run] = weakref.WeakSet()  # the runs that are not closed


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    algorithm: str | Algorithm = "ddp",
    *,
    comm: Comm | None = None,
    group: dist.ProcessGroup | None = None,
    wire: str | None = None,
    interface: str | None = None,
    timeout: float = SILENCE,
    guard: bool | int = True,
) -> Run:
    """Train this model together with the other workers of torch's process group where one is initialised, or of the
    launcher (torchrun, mpirun, Slurm, tutti); alone without any of them.

    `group` (of torch.distributed.new_group) trains with its members only; only they call this. `timeout` says for how
    many seconds a silent worker is waited for; one that dies is noticed at once.

    Several optimizers, each with parameters of its own, are handed in as a list: `run.step()` steps with all of them,
    `run.step(optimizer=one)` with that one.

    The wire is ours ("shared": memory within a machine, sockets between machines; "tcp": sockets only) for a model on
    the CPU, and torch's process group ("torch": nccl) for one on a GPU.

    Every `guard` steps (True: after the first and every 100) workers compare checksums of what must be equal, and
    workers that call different operations are stopped; False for neither.
    """
    if comm is not None and group is not None:
        raise UserError("comm= and group= both say who the workers are: give one of them")
    algorithm, optimizers = read_algorithm(algorithm), read_optimizers(optimizer)
    check_model(model, optimizers)
    check_timeout(timeout)
    every = read_interval(guard)
    if comm is not None:
        return Run(model, optimizers, replace(algorithm), comm, owns_comm=False, guard=every)
    kind = next(model.parameters()).device.type
    wire = wire or ("torch" if kind == "cuda" else "shared")
    comm = connect(WireOptions(wire, interface, None, timeout, kind), group=group)
    try:
        return Run(model, optimizers, replace(algorithm), comm, owns_comm=True, guard=every)
    except BaseException:
        comm.close()
        raise


_UNUSED = 20  # backwards without any step after which worker 0 is reminded
_GOODBYE = 60.0  # seconds for what is under way when a script ends without close(): the others may still need it


class Run:
    """A training run of this worker; use it plainly (it is closed at exit) or in a `with`."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        algorithm: Algorithm,
        comm: Comm,
        owns_comm: bool,
        guard: int = EVERY,
    ) -> None:
        self._device = next(model.parameters()).device
        check(algorithm, comm.wire, comm.size, self._device)
        _refuse_shared(model, optimizers)
        self.algorithm = algorithm
        self.comm: Metered = comm if isinstance(comm, Metered) else metered(comm)
        self.meter, self.clock = self.comm.meter, self.comm.clock
        make_equal(
            self.comm, collect(model, Optimizers(optimizers)), describe(algorithm, Optimizers(optimizers), guard)
        )
        self.operations = Operations()
        self.lane = Lane(self.comm.fork("lane"), self._device)
        self._watch = watch(self.comm, self.lane.comm, self.operations) if guard else None
        owned = self.comm if owns_comm else None
        self._finalizer = weakref.finalize(self, _close_plainly, self.lane, owned, self._watch, os.getpid())
        self.replica = Replica(model, optimizers, self.comm.zeros)
        self.replica.on_end, self.replica.on_change = self._end_of_backward, self._take_in
        self._consensus = Consensus(algorithm, self.replica, self.comm)
        self._guard = Guard(guard, algorithm, self.replica, self.comm, self.operations, self._watch)
        self._join = Join(algorithm, self.replica, self.comm, self.step)
        self.replica.before_exchange = self._before_exchange
        self.exposed = 0.0  # seconds the loop has waited for communication, since the last `take_times`
        self._waited = 0.0  # those of them that were for the lane
        self._backwards = 0  # whose gradients were exchanged
        self._closed = False
        self.identity = ""  # of this run in its checkpoints, see checkpoint.py
        try:
            algorithm.setup(self.replica, self.lane)
        except BaseException:
            self.replica.close()
            self._finalizer()
            raise
        self.model = algorithm.model(self.replica)
        _open.add(self)
        claim(self.replica.optimizers)
        settled = Hook(self._settle)
        self._first_batch = FirstBatch(model)
        self._hooks = [
            model.register_forward_pre_hook(Hook(self._look_for_change), prepend=True),
            *(each.register_state_dict_pre_hook(settled) for each in optimizers),
            *(module.register_state_dict_pre_hook(settled) for module in model.modules()),
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

        Any unit will do, as long as it is the same on all workers: only ratios count. A worker without a batch sets 0:
        its gradient is dropped, whatever it is, and weighs nothing; where all workers have 0 the gradient is none.
        """
        return self.replica.samples

    @samples.setter
    def samples(self, count: float) -> None:
        count = check_samples(count)
        if not count and self.size > 1 and not self.replica.buckets:
            raise UserError(f"'{self.algorithm}' counts every worker alike, also one without samples; use ddp")
        self.replica.samples = count

    # --- the loop ----------------------------------------------------------------------------------------------------

    def step(
        self, scaler: torch.amp.GradScaler | None = None, *, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Update the weights; with autocast hand the GradScaler in, and call its update() afterwards as usual. Of
        several optimizers all step, or the one that is named."""
        self._refuse_closed("run.step()")
        self._consensus.refuse("a step")
        check_scaler(scaler)
        self._join.refuse_scaler(scaler)
        self._join.refuse_one_of(optimizer)
        replica = self.replica
        with replica.optimizers.only(optimizer):
            self._complete_gradients()
            with self._operation("step"):
                self._first_batch.compare(self.comm)
                replica.optimizers.scaler = scaler
                self.algorithm.step(replica)
                if replica.buckets:
                    self._finish()  # what the step has put on the lane
                replica.count_step()
                self._guard_step()

    def _complete_gradients(self) -> None:
        """A worker without a backward takes part with nothing; what has changed since the backward is taken in."""
        replica = self.replica
        if not replica.buckets or (replica.exchanged and self.algorithm.steps_in_backward):
            return
        change = replica.find_change()
        if change:
            self._take_in(change)
        if change or not replica.exchanged:
            replica.finish()

    def accumulate(self) -> AbstractContextManager[None]:
        """`with run.accumulate(): loss.backward()` adds gradients up; the first backward outside exchanges the sum."""
        self._refuse_closed("run.accumulate()")
        return self.algorithm.accumulate(self.replica)

    def join(self) -> AbstractContextManager[Join]:
        """`with run.join():` around a loop that is shorter on some workers; collective.

        A worker whose loop has ended takes part with nothing until the last one's has, so that no worker waits for it
        in vain. Every step is the mean over the workers that still train, weighted by `run.samples`. Within the block
        a step has one backward outside `run.accumulate()`, learning rates are set before it, and nothing else that all
        workers must call (`run.mean`, `run.consensus`) is. Schedulers of a worker that has finished are not stepped:
        `with run.join() as joined: ...`, then `joined.missed` says how many steps it has to catch up. Gradients that
        were only accumulated when a loop ends are dropped. See join.py.
        """
        self._refuse_closed("run.join()")
        self._notice_change()
        return self._join.hold()

    def mean(self, value: float | Tensor) -> float | Tensor:
        """The mean over all workers of a number or a tensor."""
        self._refuse_closed("run.mean()")
        value = check_number(value, "run.mean()")
        self._join.refuse("run.mean()")
        if isinstance(value, Tensor):
            exact = value if value.is_floating_point() or value.is_complex() else value.double()
            total = exact.detach().clone(memory_format=torch.contiguous_format)
            with self._operation("mean"):
                self.comm.all_reduce(total, tag="metrics/mean")
            return total / self.size
        with self._operation("mean"):
            return float(self.sums([value])[0]) / self.size

    def sums(self, values: list[float]) -> Tensor:
        """The sums over all workers of a few numbers, in one exchange."""
        self._refuse_closed("run.sums()")
        self._join.refuse("a sum over all workers")
        total = torch.tensor(values, dtype=torch.float64)
        with self._operation("sums"):
            self.comm.all_reduce(total, tag="metrics/mean")
        return total

    def any(self, flag: bool) -> bool:
        """Whether any worker says so."""
        flag = bool(check_flag(flag, "run.any()"))
        with self._operation("any"):
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
        self._refuse_closed("run.consensus()")
        self._join.refuse("run.consensus()")
        return self._consensus.hold(self._operation("consensus", self._consensus.sends))

    def consensus_distance(self) -> float:
        """sqrt(mean_i |x_i - mean|^2) over the trained weights: how far the workers are apart; collective.

        It sends the model as `consensus` does; inside `with run.consensus()`, where the mean is there, one number.
        """
        self._refuse_closed("run.consensus_distance()")
        self._join.refuse("run.consensus_distance()")
        with self._operation("consensus_distance", not self.algorithm.equal):
            return self._consensus.distance()

    def consensus_state_dict(self) -> dict[str, Any]:
        """The state_dict of the mean model, as a copy on the CPU, to be saved by one of the workers; collective."""
        self._refuse_closed("run.consensus_state_dict()")
        self._join.refuse("run.consensus_state_dict()")
        with self._operation("consensus_state_dict", self._consensus.sends):
            return self._consensus.state_dict()

    # --- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on bit by bit: collective, and nothing is in flight afterwards."""
        self._refuse_closed("run.state_dict()")
        self._consensus.refuse("run.state_dict()")
        self._join.refuse("run.state_dict()")
        self._notice_change()
        self.algorithm.drain()
        return {
            "spec": str(self.algorithm),
            "workers": self.size,
            "steps": self.replica.steps,
            "trained": self.replica.parameters.names(),
            "model": self.replica.model.state_dict(),
            "bucket_steps": [bucket.steps for bucket in self.replica.buckets],
            "optimizer": self.replica.optimizers.state_dict(),
            "algorithm": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._refuse_closed("run.load_state_dict()")
        self._consensus.refuse("loading a state")
        self._join.refuse("loading a state")
        if not {"spec", "workers", "steps", "model", "optimizer", "algorithm"} <= set(state):
            raise UserError(f"this is no state of run.state_dict(): it holds {', '.join(map(str, state)) or 'nothing'}")
        if state["spec"] != str(self.algorithm):
            raise UserError(f"this state is of '{state['spec']}' and cannot continue '{self.algorithm}'")
        if state["workers"] != self.size:
            raise UserError(f"this state is of {state['workers']} workers and cannot continue with {self.size}")
        self._notice_change()
        check_trained(state, self.replica.parameters.names())
        self.algorithm.drain()
        self.replica.model.load_state_dict(state["model"])
        self.replica.optimizers.load_state_dict(state["optimizer"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.replica.load_steps(state["steps"], state.get("bucket_steps", []))

    def save(self, folder: str | Path, keep: int | None = 1, **extras: Any) -> Path:
        """Write a checkpoint of all workers into a folder that they share, where the newest `keep` stay; collective.

        Beside the state of the run and the random states it holds `extras`: objects with state_dict and
        load_state_dict (`scheduler=scheduler`), and plain values (`epoch=3`).
        """
        self._refuse_closed("run.save()")
        self._join.refuse("run.save()")
        with self._operation("save"):
            self._guard.check_all()
            return save_run(self, folder, keep, extras)

    def load(self, folder: str | Path, **extras: Any) -> dict[str, Any]:
        """Go on from the newest checkpoint of the folder, or from one that is named (`folder/step-00000400`);
        collective. The objects among `extras` are restored in place; plain values that were saved are returned.

        With another number of workers or another algorithm a warning says what was lost.
        """
        self._refuse_closed("run.load()")
        self._join.refuse("run.load()")
        with self._operation("load"):
            return load_run(self, folder, extras)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take the hooks off and let go of the wire; the model and the optimizer are the user's again."""
        try:
            if not self._closed:
                self.algorithm.drain()  # which may be the first to hear that the last step failed
        except BaseException as error:
            self._let_go(error)
            raise
        self._let_go()

    def _let_go(self, error: BaseException | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        _say_goodbye(self._watch, self.lane, error)
        _open.discard(self)
        let_go(self.replica.optimizers)
        self._first_batch.forget()
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
            self._let_go(error)

    # --- behind the loop ---------------------------------------------------------------------------------------------

    def _before_exchange(self) -> None:
        begun = self.clock.now()
        self._join.before_exchange()
        self.exposed += self.clock.now() - begun

    def _end_of_backward(self) -> None:
        self._consensus.refuse("a backward")
        self._backwards += 1
        if self._backwards == _UNUSED and self.replica.steps == 0 and self.rank == 0:
            warnings.warn(
                f"{_UNUSED} backwards and no run.step() yet: without it nothing is trained", UserWarning, stacklevel=2
            )
        agree = self.size > 1 and self.algorithm.buffers != "local" and any(True for _ in self.replica.model.buffers())
        sends = self.algorithm.exchanges_in_backward or self.algorithm.steps_in_backward or agree
        with self._operation("backward", sends):
            self._finish()
            begun = self.clock.now()
            if agree:
                agree_on_buffers(self.replica.model, self.comm, self.algorithm.buffers, self._join.training)
            self.exposed += self.clock.now() - begun

    def _operation(self, name: str, counts: bool = True) -> AbstractContextManager[None]:
        """Around everything that all workers must do together; what sends nothing does not count."""
        return self.operations.during(name, self.replica.steps) if counts else nullcontext()

    def _guard_step(self) -> None:
        if self.size == 1:
            return
        begun = self.clock.now()
        self._guard.after_step(complete=not self._join.partial)
        self.exposed += self.clock.now() - begun

    def _finish(self) -> None:
        """Wait for what the algorithm has under way; all of this is exposed."""
        begun = self.clock.now()
        self.algorithm.finish()
        seconds = self.clock.now() - begun
        self._waited += seconds
        self.exposed += seconds

    def _settle(self, *_: Any) -> None:
        """The weights are about to be read, and may be those of the step before this one."""
        self.algorithm.drain()

    def _refuse_closed(self, what: str) -> None:
        if self._closed:
            raise UserError(f"{what} after run.close(): the run is over; distribute the model again to train on")

    def _look_for_change(self, module: nn.Module, _: Any) -> None:
        """Before a forward, so that its gradients are of weights that all workers have agreed on."""
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        if self._consensus.held:  # its tensors are elsewhere for a while
            return
        if self.replica.in_backward or self.replica.looked:
            return
        if change := self.replica.find_change():
            self._take_in(change)
        self.replica.looked = True
        self.replica.keep_hooks_last()

    def _notice_change(self) -> None:
        """Now, since what comes next is about the parameters as they are; collective."""
        if change := self.replica.find_change():
            self._take_in(change)

    def _take_in(self, change: Change) -> None:
        """What is trained has changed: the algorithm is set up again, on all workers, on what there is now."""
        self._consensus.refuse("a backward")
        if change.moved and self.algorithm.late_weights:
            raise UserError(
                f"{change.what}, which was made from weights whose last step may have been under way (wait=forward); "
                "use wait=backward"
            )
        self._join.before_change(change.what)
        self.replica.parameters.check_optimizers()
        replica, known = self.replica, set(self.replica.parameters.trained())
        self.algorithm.drain()
        tensors = collect(replica.model, replica.optimizers)
        if not self.algorithm.equal:  # then only what is new has to be
            tensors = [(n, t) for n, t in tensors if isinstance(t, nn.Parameter) and t not in known]
        with self._operation("parameters"):
            make_equal(self.comm, tensors)
            self.algorithm.close()
            replica.release()
            self.algorithm.set_up_again(replica, self.lane)
            claim(replica.optimizers)


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


def _refuse_shared(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """A parameter has one run."""
    mine = {*model.parameters(), *(p for each in optimizers for group in each.param_groups for p in group["params"])}
    for run in list(_open):
        other = run.replica
        if not mine.isdisjoint([*other.model.parameters(), *other.optimizers.parameters]):
            raise UserError(
                "this model or optimizer is distributed already; close() that run first, or hand several optimizers to "
                "one: tutti.distribute(model, [first, second])"
            )


def _close_plainly(lane: Lane, comm: Comm | None, guardian: Watch | None, process: int) -> None:
    """At exit or when nobody has the run any more; not in a forked child, which would speak for its parent."""
    if threading.current_thread().name.startswith(("tutti-lane", "tutti-watch")) or process != os.getpid():
        return
    _say_goodbye(guardian, lane, getattr(sys, "last_value", None))  # set where the program has ended by an error
    lane.close(_GOODBYE)
    lane.comm.close()
    if comm is not None:
        comm.close()


def _say_goodbye(guardian: Watch | None, lane: Lane, error: BaseException | None) -> None:
    if guardian is None or guardian.closed:
        return
    guardian.close(error)
    if error is not None:  # what the lane waits for may never come
        lane.comm.interrupt(error)
