"""`podium ledger`: how good the figures of `podium plan` were on this host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from flows.commands import options
from flows.commands.project import Place
from tasks.host.ledger import FIGURES, ledger_file
from tasks.project import streams
from tasks.project.params_command import table

TITLES = ("memory", "seconds", "tokens/s")
"""Of FIGURES."""


@click.command(
    help="Measured over foretold of the device jobs that ran here, by device and kind of job: the middle of all, and "
    "the lowest and highest. podium plan widens its intervals by these.",
    epilog="The ledger belongs to this host (PODIUM_LEDGER, else podium/ledger.json where programs keep their state), "
    "so that podium clean leaves it; results in the run folders of this project are counted, too.",
)
@options.as_json
@click.pass_context
def command(ctx: click.Context, json_wanted: bool) -> None:
    from flows import ledger

    place: Place = ctx.obj
    records = ledger.records_of(place.found)
    found = ledger.summary(records)
    if json_wanted:
        options.print_json({"file": str(ledger_file() or ""), "devices": found, "records": records})
        return
    if not found:
        streams.say("no device job has been recorded here yet\n")
    else:
        head = ("device", "kind", "jobs", *TITLES)
        streams.say(table([head, *map(_row, found)]))
        streams.say("measured over foretold; 1 is as foretold, - was not foretold or not measured\n")
    options.say_next(f"podium ledger --json has every record; they are kept in {ledger_file() or 'no file'}")


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return one["device"], one["kind"], str(one["jobs"]), *(_ratio(one["ratios"][figure]) for figure in FIGURES)


def _ratio(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['middle']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
