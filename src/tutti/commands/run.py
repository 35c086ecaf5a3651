"""`tutti run` and `tutti compare`: train with one way to agree, or with several one after another on the same work."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.clock import SILENCE
from tutti.commands.base import (
    PIPED_WIDTH,
    add_command,
    check_file,
    check_folder,
    check_place,
    complain,
    find_typed,
    fraction,
    natural,
    positive,
    positive_number,
    warn,
    write_json,
)
from tutti.errors import UserError
from tutti.files import name_problem, read_text

if TYPE_CHECKING:
    from tutti.comm.rendezvous import WireOptions
    from tutti.commands.base import Commands
    from tutti.lab.record import Record
    from tutti.lab.run import Entry
    from tutti.lab.saving import Saving
    from tutti.lab.started import Started
    from tutti.launch import LaunchOptions
    from tutti.networks.base import Network
    from tutti.resuming import Keeping
    from tutti.train import Plan

RACE = ("single", "gather-scatter", "all-gather", "all-reduce", "ring", "ddp", "torch-ddp")

_RUN_EXAMPLES = """
  tutti run ddp --epochs 3
  tutti run "gradient-average(all-reduce(star), bucket=1MiB)"
  tutti run gradient-average:all-reduce:star       the same without parentheses (and the default bucket)
  tutti run ddp --task "synthetic(compute=40ms)" --model vgg-11 --steps 50
  tutti run ddp --network "hosts(100Mbit, cpu=0.5, latency=10ms)"
  tutti run ddp --partition "dirichlet(0.1)"       every worker has other classes; see tutti catalogue partitions
  tutti run d-psgd --loss 10%                      every tenth message gets lost
  tutti run d-psgd --save model.pt                 keeps the mean of all workers' models, as a state_dict
  tutti run ddp --tls --deadline 10s
  tutti run ddp --checkpoint-every 200 --keep 3 --out runs/long    saves the whole run after every 200 steps
  tutti run --continue runs/long                   stopped or killed, it goes on where it was, with the same bits
"""
_COMPARE_EXAMPLES = """
  tutti compare                                    the race: LeNet-5 on digits, 4 workers, seven ways to average
  tutti compare ring ddp torch-ddp --workers 2     the same work, three ways, two workers
  tutti compare --network "hosts(1Gbit, cpu=0.5)"  every worker on a host of its own, with a link and a CPU quota
  tutti compare ring ddp --partition by-class      two ways to agree over workers with two shards of classes each
  tutti compare @specs.txt --json results.json     one spec per line of a file; results for a program
"""


def add(commands: Commands) -> None:
    run = add_command(commands, "run", _run, "train with one way to agree", _RUN_EXAMPLES)
    run.add_argument("specs", metavar="SPEC", nargs="*", help="a preset such as ddp, or a spec in quotes")
    text = "train with several, one after another on the same work"
    compare = add_command(commands, "compare", _run, text, _COMPARE_EXAMPLES)
    compare.add_argument("specs", metavar="SPEC", nargs="*", help="presets, specs or @FILE (default: the race)")
    for command in (run, compare):
        _add_work(command)
        _add_place(command)
    _add_results(compare)
    run.set_defaults(one=True)
    compare.set_defaults(one=False, save=None, checkpoint_every=None, keep=None, goes_on_in=None)
    _add_results_of_one(run)


def _add_work(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("the work")
    work.add_argument(
        "--task", default="digits", help="see tutti catalogue tasks; or module:function (default: digits)"
    )
    work.add_argument(
        "--data", type=Path, metavar="DIR", help="where data sets are (default: $TUTTI_DATA or the cache)"
    )
    work.add_argument(
        "--partition", default="iid", metavar="SPEC", help='whose samples are whose, as "dirichlet(0.1)" (default: iid)'
    )
    work.add_argument("--model", default="", help="see tutti catalogue models (default: the task's own)")
    length = work.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=positive, help="how often over the data (default: 12)")
    length.add_argument("--steps", type=positive, help="how many steps instead")
    batch = work.add_mutually_exclusive_group()
    batch.add_argument("--batch", type=positive, help="samples per worker and step")
    batch.add_argument("--global-batch", type=positive, help="samples of all workers per step (default: 64)")
    work.add_argument("--samples", type=positive, help="train on the first so many samples only (default: all)")
    rate = work.add_mutually_exclusive_group()
    rate.add_argument("--lr", type=positive_number, default=0.1, help="learning rate (default: 0.1)")
    rate.add_argument("--tuned", action="store_true", help="each with the values that tutti study sweep found best")
    work.add_argument("--momentum", type=fraction, default=0.9, help="momentum of sgd (default: 0.9)")
    work.add_argument("--optimizer", choices=("sgd", "adam", "adamw"), default="sgd", help="(default: sgd)")
    work.add_argument("--schedule", choices=("cosine", "constant"), default="cosine", help="of lr (default: cosine)")
    work.add_argument("--seed", type=natural, default=0, help="of weights and data order (default: 0)")
    work.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="(default: cpu)")


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_argument_group("the workers")
    place.add_argument("--workers", type=positive, help="how many (default: 4, or what torchrun or Slurm started)")
    place.add_argument("--engine", choices=("processes", "threads"), default="processes", help="(default: processes)")
    place.add_argument(
        "--network", default="loopback", help='"hosts(1Gbit, cpu=0.5)": a host per worker (default: loopback)'
    )
    place.add_argument(
        "--wire",
        choices=("shared", "tcp", "torch"),
        default="shared",
        help="memory that workers of one machine share and sockets to others (default), sockets only, or torch's",
    )
    place.add_argument("--interface", help="name or address to listen on (default: the one that leads to the master)")
    place.add_argument(
        "--deadline",
        default=f"{SILENCE:g}s",
        metavar="TIME",
        help="how long a worker may be silent, as one that evaluates or compiles; a dead one is noticed at once (600s)",
    )
    place.add_argument(
        "--loss",
        default="0",
        metavar="SHARE",
        help="of gradients and weights that get lost, such as 10%% (default: 0)",
    )
    place.add_argument("--tls", action="store_true", help="encrypt, with a certificate made for this run")
    place.add_argument("--tls-cert", type=Path, metavar="FILE", help="encrypt with this certificate")
    place.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    place.add_argument("--tls-ca", type=Path, metavar="FILE", help="who must have signed the others' (default: itself)")
    place.add_argument("--nodes", type=positive, default=1, help="machines of this run (default: 1)")
    place.add_argument("--node-rank", type=natural, default=0, help="which of them this is, from 0")
    place.add_argument("--master", default="", metavar="HOST:PORT", help="where machine 0 can be reached")


def _add_results(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    results = parser.add_argument_group("the results")
    results.add_argument("--out", type=Path, metavar="DIR", help="where records and picture go (default: runs/DATE)")
    results.add_argument(
        "--resume", action="store_true", help="keep finished runs of --out if made under the same conditions"
    )
    results.add_argument("--json", metavar="FILE", help="write the results as JSON; - is standard output")
    results.add_argument("--csv", metavar="FILE", help="write the results as CSV, for other programs; - likewise")
    results.add_argument("--tensorboard", type=Path, metavar="DIR", help="write every run for TensorBoard")
    results.add_argument("--quiet", action="store_true", help="no progress")
    return results


def _add_results_of_one(run: argparse.ArgumentParser) -> None:
    results = _add_results(run)
    text = "where the trained model goes, as a state_dict; where workers differ, the mean of theirs"
    results.add_argument("--save", type=Path, metavar="FILE", help=text)
    text = "save the whole run into --out after every N steps"
    results.add_argument("--checkpoint-every", type=positive, metavar="N", help=text)
    results.add_argument("--keep", type=positive, metavar="K", help="how many checkpoints stay (default: 1)")
    text = "go on with the run that was started with --checkpoint-every N --out DIR; its options are known"
    results.add_argument("--continue", type=Path, metavar="DIR", dest="goes_on_in", help=text)


# --- run and compare -------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    started = _find_started(args)
    network = enter_network(args.network)
    from tutti.comm.rendezvous import find_place
    from tutti.lab.run import Entry, check_all, find_record, run_entries
    from tutti.lab.saving import Saving
    from tutti.lab.screen import Screen

    if args.resume and args.out is None:
        raise UserError("--resume needs --out DIR: the folder whose finished runs are kept")
    entries = [Entry.read(name) for name in _names(_specs(args))]
    plan = _plan(args)
    if started is not None:
        entries, plan = [Entry.read(started.spec, started.name)], type(plan)(**started.plan)
    place = find_place()
    speaks = (place is None or place.rank == 0) and args.node_rank == 0
    with Saving(complain) as saving, _launch_options(args, network) as options:
        if args.tuned and started is None:
            entries = [_tune(entry, plan, options, speaks) for entry in entries]
        check_all(entries, plan, options, network)
        out = args.out or _new_folder()
        made_here = not out.exists()
        if speaks:
            _check_save(args, entries)
            _check_checkpoints(args, entries)
            if args.json == args.csv == "-":
                raise UserError("--json and --csv cannot both go to standard output; give one of them a file")
            check_file(args.json, "--json")
            check_file(args.csv, "--csv")
            if args.tensorboard is not None:
                check_place(args.tensorboard, "--tensorboard")
            check_folder(out, "--out")
            if not args.resume and started is None:
                _tell_of_records(out)
            if args.checkpoint_every:
                from tutti.lab.continuing import announce

                started = announce(vars(args), entries[0], plan, options.workers, out, started)
        with (
            _no_empty_folder(out) if made_here else nullcontext(),
            network.open(options.workers) as fabric,
            Screen(quiet=args.quiet or not speaks) as screen,
        ):
            warn(fabric.description)
            here = replace(options, fabric=fabric)
            keeping = _keeping(args, out)
            records = run_entries(entries, plan, here, out, screen, args.resume, args.save, keeping, saving)
        if records and speaks:
            _show(records, out, args, saving)
        if records and speaks and started is not None and saving.all_written:
            saving.attempt(partial(started.finish, out, find_record(out, entries[0])))
    return 1 if saving.problems else 0


def _specs(args: argparse.Namespace) -> list[str]:
    """What was typed: one of `run`, some of `compare`."""
    if args.one and args.goes_on_in is None and len(args.specs) != 1:
        raise UserError(
            "tutti run needs one SPEC such as ddp (or --continue DIR), and tutti compare takes several; see tutti run "
            "--help"
        )
    return args.specs or list(RACE)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _find_started(args: argparse.Namespace) -> Started | None:
    """The run that --continue names; its options take the place of those that were not typed."""
    if args.goes_on_in is None:
        return None
    from tutti.lab.started import Started

    if args.resume:
        raise UserError("--resume keeps runs that are finished, --continue goes on with one that is not; give one")
    started = Started.read(args.goes_on_in)
    vars(args).update(started.merge(find_typed(add, "run", args.words), args.goes_on_in))
    return started


def _check_checkpoints(args: argparse.Namespace, entries: list[Entry]) -> None:
    if args.keep and not args.checkpoint_every:
        raise UserError("--keep says how many checkpoints stay, and there are none; give --checkpoint-every N too")
    if args.checkpoint_every and len(entries) > 1:
        raise UserError(f"--checkpoint-every is for one run and there are {len(entries)}; run them one by one")
    if args.checkpoint_every and args.resume:
        raise UserError("--resume keeps finished runs and --checkpoint-every saves one that is not; use --continue DIR")


def _keeping(args: argparse.Namespace, out: Path) -> Keeping | None:
    from tutti.lab.continuing import keep_in

    if not args.checkpoint_every:
        return None
    return keep_in(out, args.checkpoint_every, args.keep or 1, args.goes_on_in is not None)


def _tell_of_records(out: Path) -> None:
    """What lies in the folder already and is not of this run."""
    from tutti.lab.report.find import find_records

    count = len(find_records(out))
    if count:
        records = "a record" if count == 1 else f"{count} records"
        complain(f"{out} holds {records} of earlier runs; those of the same names are replaced")


def _check_save(args: argparse.Namespace, entries: list[Entry]) -> None:
    """Whether there will be a model, and room for it."""
    if args.save is None:
        return
    if len(entries) > 1:
        raise UserError(f"--save keeps one model and there are {len(entries)} runs; run them one by one")
    if args.resume:
        raise UserError("--save needs a run to be made, and --resume may find it finished; leave one of them out")
    check_file(str(args.save), "--save")
    check_folder(args.save.resolve().parent, "--save")


def _tune(entry: Entry, plan: Plan, options: LaunchOptions, speaks: bool) -> Entry:
    """With the best values known for it; `speaks` says where those come from."""
    from tutti.lab.tuned import find_tuned

    workers = entry.launch_options(options).workers
    found = find_tuned(entry.name, str(entry.algorithm), plan, workers)
    if speaks:
        complain(f"{entry.name} is tuned to {found.say()}")
    return replace(entry, changes=found.plan)


def enter_network(text: str) -> Network:
    """The network asked for; this process moves to where it can be made, which takes a process with one thread."""
    from tutti.networks.base import Network
    from tutti.spec import parse

    network = parse(text, Network)
    network.enter()
    return network


def _names(specs: list[str]) -> list[str]:
    """The specs given, with the lines of every @FILE in its place."""
    names: list[str] = []
    for spec in specs:
        if not spec.startswith("@"):
            names.append(spec)
            continue
        try:
            lines = read_text(Path(spec[1:]), regular=False).splitlines()
        except OSError as error:
            raise UserError(f"cannot read the specs in {spec[1:]}: {name_problem(error)}") from None
        except ValueError:
            raise UserError(f"cannot read the specs in {spec[1:]}: it is no text; it takes one per line") from None
        found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        if not found:
            raise UserError(f"there are no specs in {spec[1:]}; it takes one per line")
        names += found
    return names


def _plan(args: argparse.Namespace) -> Plan:
    from tutti.models.base import Model
    from tutti.partitions.base import Partition
    from tutti.spec import parse, parse_quantity
    from tutti.tasks.base import task_text
    from tutti.train import LossRate, Plan, find_usual_model

    batch = args.batch * _workers(args) if args.batch else args.global_batch or 64
    return Plan(
        task=task_text(args.task),
        model=str(parse(args.model, Model)) if args.model else find_usual_model(args.task),
        global_batch=batch,
        epochs=None if args.steps else args.epochs or 12,
        steps=args.steps,
        lr=args.lr,
        momentum=args.momentum,
        optimizer=args.optimizer,
        schedule=args.schedule,
        seed=args.seed,
        device=args.device,
        data=str(args.data.resolve()) if args.data else "",
        samples=args.samples,
        partition=str(parse(args.partition, Partition)),
        loss=parse_quantity(args.loss, LossRate, "--loss"),
    )


def _workers(args: argparse.Namespace) -> int:
    from tutti.launch import workers_already_started

    return args.workers or workers_already_started() or 4


@contextmanager
def _launch_options(args: argparse.Namespace, network: Network) -> Iterator[LaunchOptions]:
    from tutti.launch import LaunchOptions
    from tutti.tasks.base import find_task

    preload = find_task(args.task).modules
    with tempfile.TemporaryDirectory(prefix="tutti-tls-") if args.tls else nullcontext("") as folder:
        wire = _wire_options(args, network, Path(folder))
        yield LaunchOptions(_workers(args), args.engine, wire, args.nodes, args.node_rank, args.master, preload=preload)


def _wire_options(args: argparse.Namespace, network: Network, folder: Path) -> WireOptions:
    from tutti.comm.certificate import make_certificate
    from tutti.comm.handshake import Tls, find_address
    from tutti.comm.rendezvous import WireOptions
    from tutti.spec import Seconds, parse_quantity
    from tutti.train import find_device

    if args.interface and not network.hosts:  # which have their own
        find_address(args.interface, "127.0.0.1")
    tls = None
    if args.tls_cert or args.tls_key or args.tls_ca:
        if not (args.tls_cert and args.tls_key):
            raise UserError("--tls-cert and --tls-key go together (and --tls-ca with them): a certificate and its key")
        tls = Tls(args.tls_cert, args.tls_key, args.tls_ca)
        tls.context(server=True)  # reads the files now, so that a wrong one is named before any worker starts
    elif args.tls:
        if args.nodes > 1:
            raise UserError("a run over several nodes needs one certificate on all of them: give --tls-cert, --tls-key")
        tls = make_certificate(folder)
    if tls is not None and args.wire == "torch":
        raise UserError("torch.distributed's wire has no TLS; use --wire tcp")
    deadline = parse_quantity(args.deadline, Seconds, "--deadline")
    if deadline < 1:
        raise UserError(f"--deadline must be at least 1s, not {args.deadline}: workers need a moment to meet")
    return WireOptions(args.wire, args.interface, tls, deadline, find_device(args.device, 0).type)


@contextmanager
def _no_empty_folder(out: Path) -> Iterator[None]:
    """What ends before its first record leaves no folder behind."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # there is something in it, or another worker has removed it
            out.rmdir()
        raise


def _new_folder() -> Path:
    return Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"


def _show(records: list[Record], out: Path, args: argparse.Namespace, saving: Saving) -> None:
    """The table, the files and the finding; on standard error where standard output is JSON. What cannot be written
    keeps nothing else from being so."""
    from rich.console import Console

    from tutti.lab.export import write_csv, write_tensorboard
    from tutti.lab.labels import make_labels
    from tutti.lab.limits import describe_limits
    from tutti.lab.picture import draw
    from tutti.lab.report.page import write_report
    from tutti.lab.table import describe_own_models, finding, make_table

    stream = sys.stderr if "-" in (args.json, args.csv) else sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH)
    picture, report = out / "compare.png", out / "report.html"

    def show_files_and_finding() -> None:
        files = {"picture": picture} if drawn else {}
        files |= {"report": report} if reported else {}
        files |= {"records": out} if saving.all_written else {}
        files |= {"model": args.save} if args.save and args.save.exists() else {}
        console.print("\n".join(f"{what}: {path}" for what, path in files.items()), highlight=False, soft_wrap=True)
        for said in [*describe_own_models(records), *describe_limits(records, make_labels(records, 60))]:
            console.print(said, highlight=False, markup=False, soft_wrap=not stream.isatty())
        console.print(finding(records))

    saving.attempt(lambda: console.print(make_table(records)))
    drawn = saving.attempt(lambda: draw(records, picture))
    reported = saving.attempt(lambda: write_report(records, report))
    saving.attempt(show_files_and_finding)
    if args.json is not None:
        saving.attempt(lambda: write_json([record.row() for record in records], args.json))
    if args.csv is not None:
        saving.attempt(lambda: write_csv(records, args.csv))
    if args.tensorboard is not None:
        saving.attempt(lambda: write_tensorboard(records, args.tensorboard))
