"""DVC as a process that stays: it brings the stages up to date whose names come on its standard input, one by one.

A DVC of its own costs every stage most of a second. flows/repro.py starts this file by its path, in a checkout:

    python -P dvc_lane.py WORD dvc repro --single-item

Behind the lines of each stage it prints WORD and DVC's exit code. It ends where its input does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence


def main(word: str, command: Sequence[str]) -> None:
    """Take names until there are no more.

    Args:
        word: begins the line that says how a stage ended; no stage prints it.
        command: of DVC, without the stage.
    """
    from dvc.cli import main as dvc

    names = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a stage that reads its input must not read names
    for name in names:
        code = dvc([*command, "--", name.rstrip("\n")])
        print(f"{word} {code}", flush=True)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Bring the stages up to date whose names standard input holds.")
    parser.add_argument("word", help="begins the line that says how a stage ended")
    parser.add_argument("dvc", help="the word dvc, for who looks for one at work")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of DVC, without the stage")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # asked to end while no stage is at work here
        main(asked.word, asked.command)


if __name__ == "__main__":
    _main()
