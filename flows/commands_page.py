"""The reference page of all commands, made from what click knows of them when the documents are built."""

from __future__ import annotations

from collections.abc import Iterator

import click

from flows.cli import COMMANDS, cli
from tasks.project.param_docs import escaped

HEAD = """# All commands

Made from the commands themselves: `podium COMMAND --help` says the same. `--project DIR` before a command names a clone
of Podium other than the one around the folder you stand in. Files count from where you stand. What a run's exit code
means is told in [How a run ends](../ending.md).
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [HEAD]
    with click.Context(cli, info_name="podium") as parent:
        for name, line in COMMANDS.items():
            command = cli.get_command(parent, name)
            assert command is not None
            parts += _command(command, name, parent, line, 2)
    return "".join(parts)


def _command(command: click.Command, name: str, parent: click.Context, line: str, depth: int) -> Iterator[str]:
    """A command with its usage and words, then those below it."""
    with click.Context(command, info_name=name, parent=parent) as here:
        yield f"\n{'#' * depth} {here.command_path}\n\n"
        yield f"{escaped(command.help or line)}\n\n"
        yield f"```text\n{' '.join([here.command_path, *command.collect_usage_pieces(here)])}\n```\n"
        yield from _words(command, here)
        if isinstance(command, click.Group):
            for below in command.list_commands(here):
                found = command.get_command(here, below)
                assert found is not None
                yield from _command(found, below, here, "", depth + 1)


def _words(command: click.Command, here: click.Context) -> Iterator[str]:
    """A table of the options."""
    records = [one.get_help_record(here) for one in command.params if not getattr(one, "hidden", False)]
    rows = [(words, text) for words, text in filter(None, records) if text]  # an argument stands in the usage
    if rows:
        yield "\n| option | what it says |\n|---|---|\n"
    for words, text in rows:
        code = words.replace("|", "\\|")
        yield f"| `{code}` | {escaped(text)} |\n"
