"""`make audit` claims nothing that was not looked up; pip-audit itself says "none found" of what it skipped."""

import json
import subprocess
import sys

import pytest

from tests.places import ROOT

FINE = {"name": "fine", "version": "1.0", "vulns": []}
WEAK = {"name": "weak", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "unknown", "skip_reason": "Dependency not found on PyPI and could not be audited: unknown (3.0)"}


def audit(folder, *answers):
    """Run the script on one file per answer, with a stand-in that answers as pip-audit did when it was recorded."""
    program = folder / "pip-audit"
    program.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -r ] && in=$2; [ "$1" = --output ] && out=$2; shift; done\n'
        'cp "$in" "$out"; echo "ERROR:no connection"\n'
    )
    program.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    files = []
    for number, answer in enumerate(answers):
        files.append(folder / f"{number}.txt")
        files[-1].write_text(json.dumps({"dependencies": answer}) if isinstance(answer, list) else answer)
    return subprocess.run([ROOT / ".ci/audit", program, *files], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([[FINE, FINE]], 0, "2 packages, none with a known weakness"),
        ([[FINE, WEAK]], 1, "weak 2.0: CVE-1, fixed in 2.1"),
        ([[]], 3, "NOT DONE for"),
        (["no JSON"], 3, "did not answer (ERROR:no connection)"),
        ([[SKIPPED], [WEAK]], 1, "1 of 1 packages have known weaknesses"),
        ([[WEAK], [SKIPPED]], 1, "1 of 1 packages could not be looked up"),
    ],
)
def test_the_exit_code_says_what_was_found_and_what_was_not_done(tmp_path, answers, code, said):
    done = audit(tmp_path, *answers)
    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout
