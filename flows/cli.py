"""Command `podium`: find the project, then call a module of flows/commands/, which is imported on first use.

    podium [--project DIR] COMMAND ...

Exit codes: 0 done, 1 failed, 2 wrong usage or parameters, 3 rejected by the gate, 4 paused at a checkpoint.
"""

import contextlib
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from flows.commands.project import CALLED_FROM, CommandContext, current_folder, find_project
from flows.runs import environment
from ipu_model.core.strict import nearest
from tasks.plan.main import run_main
from tasks.stage import streams
from tasks.stage.errors import InputError, ParamsError

COMMANDS = {
    "run": "run the pipeline, from the corpus to the published model",
    "finetune": "fine-tune an encoder on your data and evaluate it",
    "pretrain": "pre-train an encoder on your text, from scratch or from a model",
    "resume": "continue a run that stopped or failed",
    "open": "open the page of a run in the browser",
    "plan": "show what a run would do, why, and its time and memory",
    "doctor": "check whether this host can start a run",
    "evaluate": "score a model, or a file of predictions, on a labelled file",
    "predict": "classify a text, answer a question, or predict for a file",
    "search": "find the texts of a file that are nearest to a text",
    "export": "write a finished model as ONNX, in fp32 and int8",
    "compare": "compare runs, or two files of predictions",
    "sweep": "try several recipes and keep the best on held-out examples",
    "data": "show training examples as the model sees them",
    "params": "show and search parameters and presets",
    "runs": "list runs, their results and disk use",
    "clean": "remove runs and leftover files, after confirmation",
    "gate": "decide again on a finished run, with other limits",
    "reproduce": "repeat a finished run from its own revision, and compare",
    "publish": "publish the model of a finished run that its gate accepted",
    "verify": "check the files, signature, card and scores of a release",
    "releases": "list and name the releases of a published model",
    "deploy": "set up a Prefect server for runs on workers",
    "worker": "run a worker",
}
"""Command -> its line in `podium --help`, in that order. Each is the attribute `command` of flows.commands.NAME."""
EARLIER: dict[str, Callable[..., list[str]]] = {
    "ask": lambda model, question, *more: ["predict", model, "--text", question, *more],
    "score": lambda questions, predictions, *more: ["evaluate", predictions, questions, *more],
    "ledger": lambda *more: ["plan", "--ledger", *more],
    "presets": lambda *more: ["params", "presets", *more],
    "promote": lambda *more: ["releases", "promote", *more],
    "rollback": lambda *more: ["releases", "rollback", *more],
}
"""Command of an earlier version, which help leaves out -> its arguments today."""
SELF = Path(__file__).resolve().parent.parent
"""Project whose code runs now, or the folder it is installed in."""


class _Commands(click.Group):
    """Command group that imports a command on first use, so that `podium --help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"flows.commands.{name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        with contextlib.suppress(TypeError):  # too few arguments, such as --help alone
            args = EARLIER[args[0]](*args[1:]) if args[0] in EARLIER else args
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_completion(ctx: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Print the completion script of a shell, and end the command."""
    if shell is None:
        return
    completion = get_completion_class(shell)
    assert completion is not None  # click knows all choices
    sys.stdout.write(completion(ctx.command, {}, "podium", "_PODIUM_COMPLETE").source() + "\n")
    ctx.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, evaluate and publish encoders, such as BERT, from a text corpus or an existing model, reproducibly.",
    epilog="Every command has --help. To start: podium run",
)
@click.option(
    "--completion",
    type=click.Choice(("bash", "zsh", "fish")),
    callback=_print_completion,
    expose_value=False,
    is_eager=True,
    help='print a completion script; for bash: eval "$(podium --completion bash)"',
)
@click.option("--project", type=click.Path(file_okay=False, path_type=Path), help="clone of Podium; default: here")
@click.version_option(package_name="podium", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, project: Path | None) -> None:
    environment.prepare_environment()
    before = os.environ.pop(CALLED_FROM, None)
    start = Path(before or current_folder())
    folder = find_project(start if project is None else start / project, above=project is None)
    if folder is not None and folder != SELF and (folder / "flows" / "cli.py").is_file():
        if before is not None:
            raise ParamsError(f"Python imports the code of {SELF}, not of {folder}: unset PYTHONPATH")
        # This command was installed from another project: start again with the code of this one.
        os.chdir(folder)
        os.environ[CALLED_FROM] = str(start)
        os.execv(sys.executable, [sys.executable, "-m", "flows", *sys.argv[1:]])
    ctx.obj = CommandContext(start, folder, project, ctx.obj)


def _explain(error: click.ClickException) -> str:
    """Return the message of a wrong command line in the form of all other errors."""
    text = error.format_message()
    if isinstance(error, click.exceptions.NoSuchCommand) and error.ctx is not None:
        group = error.ctx.command
        assert isinstance(group, click.Group)
        what = getattr(group, "item", "command")
        names = group.list_commands(error.ctx)
        return f"{error.ctx.command_path} has no {what} {error.command_name!r}{nearest(error.command_name, names)}"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"{error.ctx.command_path} has no option {error.option_name}{near}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        what = error.param.get_error_hint(error.ctx).replace("'", "")
        missing = isinstance(error, click.MissingParameter)
        return (
            f"{error.param.param_type_name} {what} is missing"
            if missing
            else f"{what}: {error.message.removesuffix('.')}"
        )
    return (text[0].lower() + text[1:] if text[:2].istitle() else text).removesuffix(".")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with the exit code of the command."""
    run_main(lambda: _call(sys.argv[1:] if arguments is None else list(arguments)))


def _call(arguments: list[str]) -> None:
    try:
        cli.main(arguments, prog_name="podium", standalone_mode=False, obj=shlex.join(["podium", *arguments]))
    except click.exceptions.NoArgsIsHelpError as error:
        streams.note(error.message, "")
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        streams.note(_explain(error), "error: ")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            streams.note(f"{error.ctx.command_path} --help", streams.NEXT)
        raise SystemExit(error.exit_code) from None
    except click.Abort as error:  # click raises it for Ctrl-C and for any EOFError
        if "marshal data" in str(error.__context__):
            raise InputError(
                f"Python's compiled files are damaged, perhaps by a full disk ({error.__context__}): remove the "
                f"__pycache__ folders below {SELF}"
            ) from None
        raise KeyboardInterrupt from error
