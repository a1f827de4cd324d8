"""Golden copies: what commands print and pages say, word for word; a change on purpose changes them in its commit.

`PODIUM_WRITE_GOLDEN=1 pytest tests/golden` writes them again; git shows what changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from flows import cli
from tests.golden.masking import NUMBER, SIZE, Masks, mask, require_same
from tests.places import copy_project

Podium = Callable[..., str]


@pytest.fixture
def podium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Podium:
    """Call a command; returns its words, its exit code and what it printed."""
    kept = ("PODIUM_LEDGER", "PODIUM_WRITE_GOLDEN")
    for name in [name for name in os.environ if name.startswith("PODIUM_") and name not in kept]:
        monkeypatch.delenv(name)
    for name in ("PREFECT_API_URL", "NO_COLOR", "FORCE_COLOR", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "100", "PODIUM_THREADS": "1", "PODIUM_CHECK_SECONDS": "120"}.items():
        monkeypatch.setenv(name, value)
    for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))

    def call(*words: str) -> str:
        try:
            cli.main(words)
            code: object = 0
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        parts = [f"$ podium {' '.join(words)}", f"exit code {code}"]
        parts += [
            f"{name}:\n{text.rstrip()}" for name, text in (("stdout", printed.out), ("stderr", printed.err)) if text
        ]
        return "\n".join(parts) + "\n\n"

    return call


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the real stages, in which nothing has run."""
    folder = copy_project(tmp_path / "project")
    monkeypatch.setattr(cli, "SELF", folder)  # else the command starts again with the code of the copy
    monkeypatch.chdir(folder)
    return folder


def places(project: Path) -> dict[str, Path]:
    return {"PROJECT": project, "FOLDER": project.parent}


def every_command(command: click.Command, here: click.Context) -> Iterator[list[str]]:
    """Words of a command and of those below it."""
    yield here.command_path.split()[1:]
    if isinstance(command, click.Group):
        for name in command.list_commands(here):
            below = command.get_command(here, name)
            assert below is not None
            yield from every_command(below, click.Context(below, here, name))


def test_help_of_all_commands(podium: Podium) -> None:
    commands = every_command(cli.cli, click.Context(cli.cli, info_name="podium"))
    require_same("help", mask("".join(podium(*words, "--help") for words in commands), {}))


def test_refused_runs(podium: Podium, project: Path) -> None:
    refused = (
        ("--set", "no.such=1"),
        ("--set", "downstream.squad.gate.min_f=80"),
        ("--set", "pretrain.phase1.steps=many"),
        ("--set", "model.hidden_size=7"),
        ("--preset", "no-such"),
        ("--name", "a/b"),
        ("--to", "finetun@squad"),
        ("--set", "corpus.source=files", "--set", "corpus.path=nowhere"),
        ("--no-such",),
    )
    require_same("run-refused", mask("".join(podium("run", *words) for words in refused), places(project)))


def test_a_plan_of_a_pod(podium: Podium, project: Path) -> None:
    free = ((rf"{NUMBER} .B are free", "SIZE are free"),)
    require_same("plan", mask(podium("plan", "--preset", "ipu-base-pod16-examples"), places(project), free))


def test_doctor(podium: Podium, project: Path) -> None:
    of_host: Masks = (
        (r"\n {20,}", " "),
        (r"\w+ on \w+$", "SYSTEM"),
        (r"\b\d+ cores?", "CORES"),
        (r"(?i)(python) +\d+\.\d+\.\d+\w*", r"\1 VERSION"),
        (r"torch \S+ \([^)]*\)", "torch VERSION"),
        (rf"{NUMBER}(?: .B)? to {NUMBER} .B", "INTERVAL"),
        SIZE,
    )
    require_same("doctor", mask(podium("doctor"), places(project), of_host))
