"""Repair of the environment variables of this process and its children, before anything reads them.

It repairs what no user wants: a loopback address behind a proxy, a home folder that is missing or read-only, a user
without a name, a project without git. flows/checks/preflight.py refuses other problems.
"""

import getpass
import os
import pwd
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.process import GIT_LOCATIONS

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULTS = {
    # No telemetry, and no pages on the temporary server.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Seconds. Prefect's default of 20 is too short while training keeps the cores busy.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
"""Default variables, which Prefect reads when it is imported."""
FOLDERS = (
    ("PREFECT_HOME", "~/.prefect"),
    ("HF_HOME", "~/.cache/huggingface"),
    ("XDG_CACHE_HOME", "~/.cache"),
    ("DVC_SITE_CACHE_DIR", "/var/tmp/dvc/repo"),
)
"""Variables that name a writable folder, with their defaults."""
PYTHON_SETTINGS = (
    "PYTHONOPTIMIZE",  # removes assertions and docstrings, which checks and --help use
    "PYTHONSAFEPATH",  # `python -m tasks...` in stages must import the code of their checkout
    "PYTHONWARNINGS",  # as errors, warnings of the tools below would end a run
    "PYTHONDEVMODE",
    "PYTHONASYNCIODEBUG",
)
"""Variables of Python that runs do not inherit."""
HOMES = artifacts.RUNS / "home"
"""Substitute home folders in a project, one for each user."""
NO_GIT = "[core]\n    no_scm = true\n    autostage = false\n"


def prepare_environment() -> None:
    """Repair the variables of this process, which children inherit. No files are written."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in (*PYTHON_SETTINGS, *GIT_LOCATIONS):
        os.environ.pop(name, None)
    if sys.warnoptions:
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
    keep_loopback_direct()
    try:
        getpass.getuser()
    except (KeyError, OSError):  # in containers the user ID may have no name, but DVC needs one
        os.environ["LOGNAME"] = str(os.getuid())


def prepare_run(project: Path, say: Callable[[str], None]) -> None:
    """Repair the environment of a run: also its home folder, and DVC's settings for a project without git.

    Args:
        say: called with a message for each visible change.

    Raises:
        InputError: there is no writable home folder, and none can be created in the project.
    """
    prepare_environment()
    provide_home(project, say)
    _work_without_git(project, say)


def keep_loopback_direct() -> None:
    """Exclude loopback addresses from proxies, for Prefect's temporary server and test servers."""
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        value = os.environ.get(name) or os.environ.get(other, "")
        hosts = [host.strip() for host in value.split(",") if host.strip()]
        os.environ[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])


def provide_home(project: Path, say: Callable[[str], None]) -> None:
    """Use a folder in the project as home if the user has no writable home.

    Raises:
        InputError: the project is not writable either.
    """
    lent = project / HOMES / str(os.getuid())
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # an empty HOME would mean /
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute() or not os.path.isdir(home) or not os.access(home, os.X_OK):
        missing = ["HOME"]
        what = f"HOME={home} is not an accessible folder" if os.environ.get("HOME") else "HOME is not set"
    else:
        missing = [name for name, default in FOLDERS if not os.environ.get(name) and not is_writable(_expand(default))]
        what = f"{' and '.join(missing)} not set, and the default folders are not writable (HOME={home})"
    if not missing:
        return
    if "XDG_CACHE_HOME" in missing and "HF_HOME" not in missing:
        os.environ.setdefault("HF_HOME", str(_expand("~/.cache/huggingface")))  # writable, often on its own disk
    places = {name: lent if name == "HOME" else lent / name.lower() for name in missing}
    try:
        for folder in places.values():
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{what}; cannot create {error.filename} instead ({error.strerror}): set {' and '.join(missing)} to a "
            "writable folder"
        ) from None
    os.environ.update({name: str(folder) for name, folder in places.items()})
    say(f"{what}: this run uses {lent} instead")


def _expand(default: str) -> Path:
    return Path(os.path.expanduser(default))


def is_writable(path: Path) -> bool:
    """Return whether a folder is writable, or can be created."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _work_without_git(project: Path, say: Callable[[str], None]) -> None:
    if any((folder / ".git").exists() for folder in (project, *project.parents)):
        return
    folder = project / ".dvc"
    tracked, path = folder / "config", folder / "config.local"
    settings = "".join(config.read_text(encoding="utf-8") for config in (tracked, path) if config.is_file())
    if re.search(r"^\s*no_scm\s*=", settings, re.MULTILINE) or not is_writable(folder):
        return
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    before, header, after = text.partition("[core]\n")
    # Written in place to keep its permissions, as it may contain secrets.
    path.write_text(f"{before}{NO_GIT}{after}" if header else f"{NO_GIT}{text}", encoding="utf-8")
    say(f"{project} is not in a git repository: set no_scm in {path} for DVC (delete it after git init)")


def user_name(user: int) -> str:
    """Return the name of a user ID, or "user ID" if it has none, as in some containers."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
