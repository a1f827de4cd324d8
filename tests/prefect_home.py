"""Homes of Prefect in which its database is complete: in every new one a server makes it for six CPU seconds."""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ipu_model.core.files import exclusive_lock

KEPT = Path(tempfile.gettempdir()) / f"podium-tests-{os.geteuid()}"


def make_home(home, database="prefect.db"):
    """Make a home of Prefect with a copy of the empty database, which the first test of this Prefect made."""
    KEPT.mkdir(mode=0o700, exist_ok=True)
    complete = KEPT / version("prefect")
    with exclusive_lock(KEPT / "lock"):
        if not complete.is_dir():
            with tempfile.TemporaryDirectory(dir=KEPT) as new:
                words = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
                plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
                subprocess.run(words, env={**plain, "PREFECT_HOME": new}, check=True, capture_output=True)
                shutil.copytree(new, complete.with_suffix(".new"), dirs_exist_ok=True)
            complete.with_suffix(".new").rename(complete)
    for folder in (home, home / f"podium-{version('prefect')}"):  # of a server in this home, and of a plain run
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(complete / "prefect.db", folder / database)
    return home
