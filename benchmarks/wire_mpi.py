"""The MPI side of wire.py and routes.py: run by them under mpirun, prints rows; a sample is the slowest worker's."""

from __future__ import annotations

import json
import sys

import numpy as np
from mpi4py import MPI
from wire import in_a_row, row


def round_trip(comm: MPI.Comm, buffer: np.ndarray) -> None:
    if comm.rank == 0:
        comm.Send(buffer, 1)
        comm.Recv(buffer, 1)
    elif comm.rank == 1:
        comm.Recv(buffer, 0)
        comm.Send(buffer, 0)


def main() -> None:
    comm = MPI.COMM_WORLD
    repeats, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    rows = []
    for nbytes in sizes:
        buffer = np.ones(nbytes // 4, dtype=np.float32)
        times: dict[str, list[float]] = {"round trip": [], "all-reduce": []}
        row_of = in_a_row(nbytes)
        for _ in range(max(repeats, min(100, int(2e7 / nbytes)))):
            comm.Barrier()
            begun = MPI.Wtime()
            for _ in range(row_of):
                round_trip(comm, buffer)
            times["round trip"].append((MPI.Wtime() - begun) / row_of)
            buffer.fill(1.0)
            comm.Barrier()
            begun = MPI.Wtime()
            for _ in range(row_of):
                comm.Allreduce(MPI.IN_PLACE, buffer)
            times["all-reduce"].append((MPI.Wtime() - begun) / row_of)
            assert buffer[0] == comm.size**row_of == buffer[-1], "MPI is wrong"
        for operation, seconds in times.items():
            slowest = [max(sample) for sample in zip(*comm.allgather(seconds), strict=True)]
            rows.append(row(comm.size, nbytes, operation, "mpi", slowest))
    if comm.rank == 0:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
