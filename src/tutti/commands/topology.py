"""`tutti topology`: the figures of a topology, its drawing, and how a message spreads over it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.commands.base import PIPED_WIDTH, add_command, check_file, natural, positive, write_json
from tutti.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from tutti.commands.base import Commands
    from tutti.topologies.base import Topology

_MOST_WORKERS = 512  # matrices have a row and a column for each
_EXAMPLES = """
  tutti topology                                        all there are, with figures for 8 workers
  tutti topology torus --workers 12                     one of them: figures, drawing, peers, mixing matrix
  tutti topology double-binary-tree --workers 16 --png trees.png
  tutti topology "random-regular(degree=3)" --workers 16
  tutti topology "edge-list(0-1-2-3+1-3)" --workers 4   your own; or a file with one link per line
  tutti topology chain --spread --from 3                how worker 3's message spreads: gossip against relay
  tutti topology ring --workers 16 --spread --svg spread.svg
"""


def add(commands: Commands) -> None:
    parser = add_command(
        commands, "topology", _topology, "show who talks to whom, and how fast that spreads", _EXAMPLES
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="a topology's spec (default: figures of all there are)")
    parser.add_argument("--workers", metavar="N", type=positive, default=8, help="how many workers (default: 8)")
    parser.add_argument("--step", metavar="K", type=natural, default=0, help="for topologies that change (default: 0)")
    parser.add_argument(
        "--mixing",
        choices=("metropolis", "uniform", "lazy"),
        default="metropolis",
        help="gossip's weights (default: metropolis)",
    )
    parser.add_argument("--spread", action="store_true", help="show how one worker's message spreads over the rounds")
    parser.add_argument("--from", metavar="RANK", dest="source", type=natural, help="whose message (default: worker 0)")
    parser.add_argument(
        "--rounds", metavar="R", type=positive, help="how many rounds of it (default: until relay is done)"
    )
    parser.add_argument("--png", metavar="FILE", help="draw it as a PNG picture")
    parser.add_argument("--svg", metavar="FILE", help="draw it as an SVG picture")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")


def _topology(args: argparse.Namespace) -> int:
    _check(args)
    if args.name is None:
        return _show_all(args)

    from tutti.spec import parse
    from tutti.topologies.base import Topology

    topology = parse(args.name, Topology)
    return _show_spread(args, topology) if args.spread else _show_one(args, topology)


def _check(args: argparse.Namespace) -> None:
    """What does not go together, before anything is computed."""
    if args.workers > _MOST_WORKERS:
        raise UserError(f"--workers {args.workers} is more than can be shown: take up to {_MOST_WORKERS}")
    if not args.spread and (args.source is not None or args.rounds is not None):
        raise UserError(f"{'--from' if args.source is not None else '--rounds'} belongs to --spread, which is missing")
    if args.name is None and (args.spread or args.png or args.svg):
        raise UserError("a drawing needs the NAME of a topology, such as ring")
    for target, form in ((args.png, "png"), (args.svg, "svg")):
        if target is not None and not target.endswith(f".{form}"):
            raise UserError(f"--{form} takes a file that ends in .{form}, not {target}")
    for option, target in (("--json", args.json), ("--png", args.png), ("--svg", args.svg)):
        check_file(target, option)


def _show_all(args: argparse.Namespace) -> int:
    from tutti.lab.topology_figures import as_json, measure_all
    from tutti.lab.topology_screen import make_overview

    found, refused = measure_all(args.workers, args.mixing, args.step)
    _give(args, [as_json(each) for each in found], make_overview(found, refused))
    return 0


def _show_one(args: argparse.Namespace, topology: Topology) -> int:
    from tutti.lab.topology_figures import as_json, find_equals, list_graphs, measure
    from tutti.lab.topology_screen import make_details

    figures = measure(topology, args.workers, args.mixing, args.step)
    _draw(args, lambda picture: picture.make_graph(topology, figures))
    equals = find_equals(topology, args.workers)
    told = {**as_json(figures), "same_links_as": equals, "graphs": list_graphs(topology, figures)}
    _give(args, told, make_details(topology, figures, equals))
    return 0


def _show_spread(args: argparse.Namespace, topology: Topology) -> int:
    from tutti.lab.topology_screen import make_spread
    from tutti.lab.topology_spread import as_json, spread

    found = spread(topology, args.workers, args.source or 0, args.mixing, args.step, args.rounds)
    _draw(args, lambda picture: picture.make_spread(found))
    _give(args, as_json(found), make_spread(found))
    return 0


def _draw(args: argparse.Namespace, make: Callable[[ModuleType], Figure]) -> None:
    """The pictures that were asked for; matplotlib comes only with the first."""
    for target, form in ((args.png, "png"), (args.svg, "svg")):
        if target is not None:
            from tutti.lab import topology_picture

            topology_picture.save(make(topology_picture), Path(target), form)


def _give(args: argparse.Namespace, figures: Any, shown: RenderableType) -> None:
    if args.json is not None:
        write_json(figures, args.json)
    if args.json != "-":
        from rich.console import Console

        console = Console(highlight=False)
        console.width = min(console.width, PIPED_WIDTH) if console.is_terminal else PIPED_WIDTH
        console.print(shown)
        for target in filter(None, (args.png, args.svg)):
            console.print(f"drawn in {target}", style="dim", markup=False)
