"""Homes of Prefect in which its database is complete: in every new one a server makes it for six CPU seconds."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

KEPT = Path(tempfile.gettempdir()) / f"podium-tests-{os.geteuid()}"


def make_home(home, database="prefect.db"):
    """Make a home of Prefect with a copy of the empty database, which the first test of this Prefect made."""
    KEPT.mkdir(mode=0o700, exist_ok=True)
    made = KEPT / version("prefect")
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            with tempfile.TemporaryDirectory(dir=KEPT) as new:
                words = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
                own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
                subprocess.run(words, env={**own, "PREFECT_HOME": new}, check=True, capture_output=True)
                shutil.copytree(new, made.with_suffix(".new"), dirs_exist_ok=True)
            made.with_suffix(".new").rename(made)
    for place in (home, home / f"podium-{version('prefect')}"):  # of a server in this home, and of a plain run
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(made / "prefect.db", place / database)
    return home
