"""How a command line ends: one message, one exit code, no traceback for what a person can act on."""

import errno

import pytest

from tasks.plan.main import run_main
from tasks.stage import errors


def ended(failure, capsys):
    def main():
        raise failure

    with pytest.raises(SystemExit) as end:
        run_main(main)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (errors.InputError("corpus.path is empty"), 1),
        (errors.ParamsError("fintune is not known"), 2),
        (errors.GateRejected("f1 is under the floor"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(failure, code, capsys):
    found, said = ended(failure, capsys)
    assert found == code
    assert str(failure) in said
    assert "Traceback" not in said


def test_a_full_disk_is_said_with_its_path_and_what_to_check(capsys):
    code, said = ended(OSError(errno.ENOSPC, "No space left on device", "data/rows"), capsys)
    assert code == 1
    assert "No space left on device (data/rows)" in said


def test_a_defect_of_ours_keeps_its_traceback():
    def main():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_main(main)
