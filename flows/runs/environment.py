"""What this process and its children take from their environment, put right before anything reads it.

Here is what can be mended and is nobody's wish: a loopback that goes through a proxy, a home that does not exist or
cannot be written, a user without a name, a project without git. flows/checks/preflight.py refuses the rest.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path

from tasks.stage import artifacts
from tasks.stage.errors import InputError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULTS = {
    # Nobody is called, and the temporary server serves no pages.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Seconds; Prefect's own 20 are too few where a training keeps the cores busy.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
"""Read by Prefect when it is imported."""
FOLDERS = (
    ("PREFECT_HOME", "~/.prefect"),
    ("HF_HOME", "~/.cache/huggingface"),
    ("XDG_CACHE_HOME", "~/.cache"),
    ("DVC_SITE_CACHE_DIR", "/var/tmp/dvc/repo"),
)
"""Variables that name a folder in which something is written, and where that is without them."""
HOMES = artifacts.RUNS / "home"
"""In a project: stands in for what a user's own home lacks, a folder for each user."""
NO_GIT = "[core]\n    no_scm = true\n    autostage = false\n"


def prepare() -> None:
    """Put this process's variables right; its children inherit them. Nothing is written."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.pop("PYTHONOPTIMIZE", None)  # checks and the texts of --help are made of what it takes away
    os.environ.pop("PYTHONSAFEPATH", None)  # stages run `python -m tasks...`, which takes the code of their checkout
    keep_loopback_direct()
    try:
        getpass.getuser()
    except (KeyError, OSError):  # containers run as numbers that no list of users has; DVC asks for a name
        os.environ["LOGNAME"] = str(os.getuid())


def prepare_run(project: Path, say: Callable[[str], None]) -> None:
    """The same for a run, whose project may lend a home, and whose DVC learns whether git keeps the project.

    Args:
        say: takes a line for each thing that a person may wonder about.

    Raises:
        InputError: there is no home, and the project cannot lend one.
    """
    prepare()
    lend_home(project, say)
    _work_without_git(project, say)


def keep_loopback_direct() -> None:
    """Let no proxy stand between this host and itself: Prefect's own server, and a server of the tests."""
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        stated = os.environ.get(name) or os.environ.get(other, "")
        hosts = [host.strip() for host in stated.split(",") if host.strip()]
        os.environ[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])


def lend_home(project: Path, say: Callable[[str], None]) -> None:
    """Where the user has no home that can be written, let a folder of the project stand in for it.

    Raises:
        InputError: the project cannot be written either.
    """
    lent = project / HOMES / str(os.getuid())
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # it would stand for /
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute() or not os.path.isdir(home) or not os.access(home, os.X_OK):
        missing = ["HOME"]
        what = f"HOME={home} is no folder that this user may enter" if os.environ.get("HOME") else "HOME is not set"
    else:
        missing = [name for name, default in FOLDERS if not os.environ.get(name) and not can_write(_place(default))]
        what = f"no {' or '.join(missing)} is set, and what stands in for it cannot be written (HOME={home})"
    if not missing:
        return
    if "XDG_CACHE_HOME" in missing and "HF_HOME" not in missing:
        os.environ.setdefault("HF_HOME", str(_place("~/.cache/huggingface")))  # it has a disk of its own
    places = {name: lent if name == "HOME" else lent / name.lower() for name in missing}
    try:
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{what}; {error.filename} cannot be made in its place ({error.strerror}): set "
            f"{' and '.join(missing)} to a folder that can be written"
        ) from None
    os.environ.update({name: str(place) for name, place in places.items()})
    say(f"{what}: this run keeps such files in {lent}")


def _place(default: str) -> Path:
    return Path(os.path.expanduser(default))


def can_write(path: Path) -> bool:
    """Whether a folder can be written, or made."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _work_without_git(project: Path, say: Callable[[str], None]) -> None:
    """DVC asks for git, unless it is told that there is none."""
    if any((folder / ".git").exists() for folder in (project, *project.parents)):
        return
    folder = project / ".dvc"
    own, path = folder / "config", folder / "config.local"
    stated = "".join(config.read_text(encoding="utf-8") for config in (own, path) if config.is_file())
    if re.search(r"^\s*no_scm\s*=", stated, re.MULTILINE) or not can_write(folder):
        return
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, header, after = text.partition("[core]\n")
    # In place, as what it may hold is nobody else's to read.
    path.write_text(f"{before}{NO_GIT}{after}" if header else f"{NO_GIT}{text}", encoding="utf-8")
    say(f"no git keeps {project}; {path} says so to DVC now (delete its no_scm after a git init)")


def name_of(user: int) -> str:
    """What a user is called here; a container may run under a number that has no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
