"""`podium completion`: print a shell completion script."""

import sys

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(help='Print the completion script of a shell. For bash: eval "$(podium completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    found = get_completion_class(shell)
    assert found is not None  # click knows all of SHELLS
    sys.stdout.write(found(ctx.find_root().command, {}, "podium", "_PODIUM_COMPLETE").source() + "\n")
