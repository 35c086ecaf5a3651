"""Results of an experiment that was never run: a record by hand for every job, as its plan asks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sample_records import make_record

from tutti.lab.experiment import Job, Results
from tutti.lab.record import Record, describe_versions
from tutti.lab.run import describe_launch
from tutti.lab.studies.base import Study
from tutti.launch import LaunchOptions

STEPS = 41  # of a run whose plan counts epochs


def make_results(
    jobs: list[Job], repeats: int = 1, figures: Callable[[str, int], dict[str, Any]] = lambda *_: {}
) -> Results:
    """`figures` gives what is special about a repetition, by the job's name and from 1 on; see `make_job_record`."""
    numbers = range(1, repeats + 1)
    return Results(
        {job.name: [make_job_record(job, **figures(job.name, number)) for number in numbers] for job in jobs}
    )


def play(study: Study, figures: Callable[[str, int], dict[str, Any]] = lambda *_: {}) -> tuple[list[Job], Results]:
    """All that a study wants to run, also what follows from the first records, and what came of it."""
    played: list[Job] = []
    results, jobs = Results({}), study.jobs()
    while jobs:
        played += jobs
        results |= make_results(jobs, 1, figures)
        jobs = study.more(results)
    return played, results


def make_job_record(job: Job, **figures: Any) -> Record:
    """Figures are those of `make_record`, or keys of the measurements with a value per worker, as in `each_losses`."""
    each = {key.removeprefix("each_"): figures.pop(key) for key in list(figures) if key.startswith("each_")}
    plan = dataclasses.asdict(job.plan)
    evaluations = job.plan.epochs or 1
    usual = {
        "workers": job.takes,
        "steps": job.plan.steps or max(STEPS, evaluations),
        "accuracies": [0.2 + 0.7 * (index + 1) / evaluations for index in range(evaluations)],
        "network": {"asked": job.network, "measured": [_host(rank) for rank in range(job.workers)]},
    }
    record = make_record(job.name, **{**usual, **figures})
    measurements = [
        {**measurement, **{key: values[rank] for key, values in each.items()}}
        for rank, measurement in enumerate(record.measurements)
    ]
    launch = {**record.launch, "engine": job.engine}
    return dataclasses.replace(record, spec=job.spec, plan=plan, launch=launch, measurements=measurements)


def _host(rank: int) -> dict[str, Any]:
    rates = {"asked": 1e9, "out": 9.9e8, "in": 9.8e8, "payload_out": 9.5e8, "payload_in": 9.4e8}
    return {"host": rank, **rates, "latency": 1e-5, "cpu_asked": 0.45, "cpu": 0.44}


def made_now(record: Record, options: LaunchOptions) -> Record:
    """The same, as if it had been made here with these options."""
    launch = {**record.launch, **describe_launch(options)}
    return dataclasses.replace(record, launch=launch, versions=describe_versions())
