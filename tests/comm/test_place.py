"""Who a process is, according to the environment that its launcher has set."""

from __future__ import annotations

import pytest

from tutti.comm.place import Place, find_place
from tutti.errors import UserError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "node[03-04]"}
MPI = pytest.mark.parametrize("env", [OPEN_MPI, HYDRA], ids=["open-mpi", "hydra"])


@MPI
def test_mpirun_on_one_machine(env: dict[str, str]) -> None:
    assert find_place(env) == Place(2, 4, 1, "127.0.0.1", 29500)


@MPI
def test_mpirun_with_a_master(env: dict[str, str]) -> None:
    given = {"MASTER_ADDR": "node7", "MASTER_PORT": "4321"}
    assert find_place(env | given) == Place(2, 4, 1, "node7", 4321)


@pytest.mark.parametrize(
    "env", [OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, HYDRA | {"MPI_LOCALNRANKS": "2"}], ids=["open-mpi", "hydra"]
)
def test_mpirun_on_several_hosts_needs_a_master(env: dict[str, str]) -> None:
    with pytest.raises(
        UserError, match=r"4 workers on several hosts and MASTER_ADDR is not set: give the address .*-x"
    ):
        find_place(env)
    place = find_place(env | SLURM)
    assert place is not None
    assert place.master == "node03", "an allocation of Slurm says which host is the first"


def test_mpirun_inside_an_allocation_wins() -> None:
    place = find_place(OPEN_MPI | SLURM | {"SLURM_NTASKS": "8"})
    assert place is not None
    assert (place.rank, place.size) == (2, 4)


def test_torchrun_inside_mpirun_wins() -> None:
    place = find_place(OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "2"})
    assert place is not None
    assert (place.rank, place.size) == (0, 2)


def test_one_worker_of_mpirun_is_alone() -> None:
    assert find_place({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_a_world_of_one_needs_no_rank() -> None:
    assert find_place({"WORLD_SIZE": "1"}) is None


def test_a_world_size_that_slurm_confirms() -> None:
    place = find_place(SLURM | {"SLURM_NTASKS": "2", "WORLD_SIZE": "2"})
    assert place is not None
    assert place.size == 2


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"RANK": "0"}, "RANK is 0 and WORLD_SIZE is not set: set both"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4 and RANK is not set: set both"),
        (SLURM | {"RANK": "0"}, "RANK is 0 and WORLD_SIZE is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x': it must be a whole number"),
        ({"RANK": "x"}, "RANK is 'x': it must be a whole number"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is '': it must be a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1': it must be a whole number of at least 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is '0': it must be a whole number of at least 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2: ranks go from 0 to WORLD_SIZE - 1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "MASTER_PORT is 70000: a port is a number from 1"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "one"}, "LOCAL_RANK is 'one'"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK is 4 and OMPI_COMM_WORLD_SIZE is 4"),
        (OPEN_MPI | {"WORLD_SIZE": "8"}, "WORLD_SIZE is 8, but the launcher says"),
        (SLURM | {"SLURM_NTASKS": "many"}, "SLURM_NTASKS is 'many'"),
    ],
)
def test_what_cannot_be_is_refused(env: dict[str, str], says: str) -> None:
    """In one sentence, and never by training alone."""
    with pytest.raises(UserError, match=says) as refused:
        find_place(env)
    assert "\n" not in str(refused.value)
