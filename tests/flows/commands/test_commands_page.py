"""The page of all commands, made from click."""

import re

import click
import pytest

from docs.reference_pages import build_commands_page
from flows.cli import COMMANDS, cli, main
from tests.places import ROOT


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


def test_every_command_and_option_stands_on_the_page_and_says_what_it_is_for():
    text = build_commands_page()
    commands = dict(every_command())
    assert len(commands) > 30
    for words, command in commands.items():
        section = re.search(rf"^#+ {re.escape(words)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, words
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, (words, option.opts)
                shown = f"`{option.opts[-1]}" in section[1] or f"{option.opts[-1]} " in section[1]
                assert shown or option.hidden, (words, option.opts)


@pytest.mark.parametrize(
    ("words", "error", "help_of"),
    [
        ("params lst", "podium params has no command 'lst'; did you mean list?", "podium params"),
        ("sweep finetune nerr", "podium sweep finetune has no kind 'nerr'", "podium sweep finetune"),
        ("finetune ner --modell x", "podium finetune ner has no option --modell", "podium finetune ner"),
        ("open a b", "got unexpected extra argument (b)", "podium open"),
        ("run --set", "option '--set' requires an argument", ""),
    ],
)
def test_a_wrong_command_line_is_one_error_in_one_form(capsys, monkeypatch, words, error, help_of):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        main(words.split())
    first, *others = capsys.readouterr().err.splitlines()
    assert (end.value.code, first[: len(error) + 7]) == (2, f"error: {error}")
    assert others == ([f"next: {help_of} --help"] if help_of else [])
