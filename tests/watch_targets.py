"""What the tests of the watch run on workers that are processes."""

from __future__ import annotations

import time

from training import set_up, train

from tutti import watch
from tutti.comm.base import Comm
from tutti.errors import RunFailed
from tutti.launch import Report


def desynchronise(comm: Comm, _: Report, how: str) -> list[str]:
    """Worker 1 does something else than the others, and its process lives on; what each worker says in the end."""
    watch.PATIENCE, watch.TICK = 0.3, 0.1
    side = comm.fork("side")
    sentence = ""
    try:
        with set_up(comm, "d-psgd") as run:
            train(run, range(2))
            run.mean(1.0)
            if comm.rank == 1:
                if how == "operation":
                    run.mean(1.0)
                if how == "raise":
                    raise LookupError("the dog ate it")
                if how == "leave":
                    run.close()
            else:
                train(run, range(2, 50))
    except (RunFailed, LookupError) as error:
        sentence = str(error)
    return [said.decode() for said in side.gather_bytes(sentence.encode())]


def evaluate_slowly(comm: Comm, _: Report) -> int:
    """Worker 0 takes its time in every step."""
    watch.PATIENCE, watch.TICK = 0.1, 0.05
    with set_up(comm, "ddp") as run:
        for step in range(4):
            train(run, range(step, step + 1))
            if comm.rank == 0:
                time.sleep(0.5)
        return run.replica.steps
