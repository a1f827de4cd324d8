"""The log of a run on a disk that is full."""

import logging
from pathlib import Path

from flows.runs.log import redirect_logging


def test_a_log_that_cannot_be_written_says_so_once_and_ends_nothing(capsys):
    with redirect_logging(Path("/dev/full")):
        for number in range(3):
            logging.getLogger().warning("line %d", number)
    said = capsys.readouterr().err
    assert said == "note: /dev/full cannot be written (No space left on device): log lines are lost\n"
