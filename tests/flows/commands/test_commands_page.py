"""The page of all commands, made from click."""

import re

import click

from docs.reference_pages import build_commands_page, build_params_page, escape_markdown
from flows.cli import COMMANDS, cli


def every_command():
    """Words of each command and those below it, with the command."""
    with click.Context(cli, info_name="podium", **cli.context_settings) as parent:
        todo = [(parent, name, cli.get_command(parent, name)) for name in COMMANDS]
        while todo:
            above, name, command = todo.pop()
            here = click.Context(command, info_name=name, parent=above)
            yield here.command_path, command
            if isinstance(command, click.Group):
                todo += [(here, below, command.get_command(here, below)) for below in command.list_commands(here)]


def test_every_command_and_option_stands_on_the_page():
    text = build_commands_page()
    found = dict(every_command())
    assert len(found) > 30
    for words, command in found.items():
        section = re.search(rf"^#+ {re.escape(words)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, words
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert f"`{option.opts[-1]}" in section[1] or f"{option.opts[-1]} " in section[1], (words, option.opts)


def test_every_option_says_what_it_is_for():
    silent = [
        f"{words} {option.opts[0]}"
        for words, command in every_command()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_every_parameter_stands_on_its_page():
    text = build_params_page()
    for row in ("| `phase1.steps` |", "| `gate.min_f1` |", "| `task` | `cola`, `sst2`", "| `near_duplicates` |"):
        assert row in text


def test_words_become_no_markup():
    assert escape_markdown("a * b_c <x> [d](e)|f") == r"a \* b\_c \<x\> \[d\](e)\|f"
    assert escape_markdown("a `b*c|d` e") == r"a `b*c\|d` e"
    assert escape_markdown("one ` alone") == r"one \` alone"
    assert escape_markdown("see docs/plan.md") == "see [docs/plan.md](../plan.md)"
