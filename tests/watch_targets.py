"""What the tests of the watch run on workers that are processes."""

from __future__ import annotations

import time

from training import momentum, small_model, train

from tutti import watch
from tutti.comm.base import Comm
from tutti.engine import distribute
from tutti.errors import RunFailed, UserError
from tutti.launch import Report


def go_apart(comm: Comm, _: Report) -> dict[str, list[str]]:
    """Worker 1 does something else than the others, and its process lives on; what each worker says in the end."""
    watch.PATIENCE, watch.TICK = 0.3, 0.1
    return {
        how: [said.decode() for said in comm.gather_bytes(_one_run(comm.fork(how), how).encode())]
        for how in ("operation", "raise", "leave", "slow", "weights", "spec")
    }


def _one_run(comm: Comm, how: str) -> str:
    special, model = comm.rank == 1, small_model()
    algorithm = "d-psgd" if how in ("operation", "leave") or (how == "spec" and special) else "ddp"
    try:
        with distribute(model, momentum(model), algorithm, comm=comm, guard=1) as run:
            train(run, range(2))
            run.mean(1.0)
            if special:
                match how:
                    case "operation":
                        run.mean(1.0)
                    case "raise":
                        raise LookupError("the dog ate it")
                    case "leave":
                        return ""
                    case "slow":
                        time.sleep(5 * watch.PATIENCE)
                    case "weights":
                        model[2].bias.data.add_(1)
            train(run, range(2, 6))
    except (RunFailed, UserError, LookupError) as error:
        return str(error)
    return ""
