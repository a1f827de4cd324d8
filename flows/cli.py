"""The command `podium`: finds the project, then hands over to a module of flows/commands/, imported when asked for.

    podium [--project DIR] COMMAND ...

Exit codes: 0 done, 1 failed, 2 wrong usage or parameters, 3 rejected by the gate, 4 paused at a checkpoint.
"""

from __future__ import annotations

import importlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from flows.commands.project import CALLED_FROM, Place, current_folder, find_project
from flows.runs import environment
from tasks.plan.main import run_main
from tasks.stage import streams
from tasks.stage.errors import InputError, ParamsError

COMMANDS = {
    "run": "run the pipeline, from the corpus to the published model",
    "finetune": "teach a BERT you have with your own file, and judge it",
    "pretrain": "teach BERT your own text, or a model you have",
    "plan": "say what a run would do and take, and why; runs nothing",
    "ledger": "compare past estimates with measurements",
    "doctor": "say whether a run could start here, and what stands in its way",
    "ask": "ask a model a question about a text",
    "evaluate": "score a model on a file with labels, with intervals and a page",
    "predict": "a model's answers to the examples of a file",
    "score": "exact match and F1 of any predictions",
    "compare": "runs beside each other, or two files of predictions",
    "sweep": "try several recipes, and keep the best by held-out examples",
    "data": "show what reaches the loss",
    "params": "what can be set, and what results",
    "runs": "the runs there are, what became of them, and the room they take",
    "clean": "remove runs and what they left, after asking",
    "presets": "the recipes there are",
    "publish": "publish what the gate of a finished run accepted",
    "deploy": "give a Prefect server what runs on workers need",
    "worker": "take runs that were sent to this host",
    "completion": "complete the words of podium in your shell",
}
"""In the order of the help, with the line it shows; each is the attribute `command` of flows.commands.NAME."""
SELF = Path(__file__).resolve().parent.parent
"""The project whose code runs now, or the folder it is installed in."""


class _Commands(click.Group):
    """Imports a command when it is used, so that `podium --help` does not wait for all of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"flows.commands.{name}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From a text corpus, or a BERT you have, to a published model, reproducibly.",
    epilog="Every command has --help. The first one to try: podium run",
)
@click.option("--project", type=click.Path(file_okay=False, path_type=Path), help="a clone of Podium; default: here")
@click.version_option(package_name="podium", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, project: Path | None) -> None:
    environment.prepare()
    before = os.environ.pop(CALLED_FROM, None)
    here = Path(before or current_folder())
    found = find_project(here if project is None else here / project, above=project is None)
    if found is not None and found != SELF and (found / "flows" / "cli.py").is_file():
        if before is not None:
            raise ParamsError(f"Python takes the code of {SELF} and not that of {found}: unset PYTHONPATH")
        # Start again in a project that is not the one this command was installed from: its stages run its own code.
        os.chdir(found)
        os.environ[CALLED_FROM] = str(here)
        os.execv(sys.executable, [sys.executable, "-m", "flows", *sys.argv[1:]])
    ctx.obj = Place(here, found, project, ctx.obj)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; ends the process with the exit code of the command."""
    run_main(lambda: _call(sys.argv[1:] if arguments is None else list(arguments)))


def _call(arguments: list[str]) -> None:
    try:
        cli.main(arguments, prog_name="podium", standalone_mode=False, obj=shlex.join(["podium", *arguments]))
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        streams.note(said.getvalue().rstrip("\n"), "")
        raise SystemExit(error.exit_code) from None
    except click.Abort as error:  # what click makes of Ctrl-C, and of the end of what somebody types
        if "marshal data" in str(error.__context__):
            raise InputError(
                f"what Python compiled is damaged, as a full disk leaves it ({error.__context__}): remove the folders "
                f"__pycache__ below {SELF}"
            ) from None
        raise KeyboardInterrupt from error
