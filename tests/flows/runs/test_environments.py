"""Machines that are not ours: each row is an environment in which a run works, or is refused before its first stage."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flows.runs import environment
from tests.faults import small_run
from tests.places import ROOT
from tests.prefect_home import make_home

STRANGER = 54321
"""A user id without an entry in the list of users."""
CLOSING = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
RUN = ("-m", "flows", "run")
CORPUS = ("-c", small_run.SOME_STAGES, "corpus@text", "--no-publish")
"""A run of one stage; what it needs around it is what all need."""
HERE = {"PYTHONPATH": str(ROOT)}


def start(project, *words, variables=(), user=None, group=None, closed=None, umask=-1):
    """A command of this Python in a clone, to its end, with no other variables; stdout and stderr in one."""
    command = [sys.executable, *words]
    if closed is not None:
        command = [sys.executable, "-c", CLOSING, str(closed), *words]
    if user is not None:
        command = [*as_user(user, group or user), *command]
    plain = {"PATH": os.defpath, "HOME": str(project.parent / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    options = {"text": True, "errors": "replace", "timeout": 300, "umask": umask}
    return subprocess.run(command, cwd=project, env={**plain, **dict(variables)}, **streams, **options)


def as_user(user, group):
    """Words that give a command another user, who may read this Python wherever it lies, and write nothing more."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    caps = [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    words = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *caps, "--"]
    if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("setpriv may not give a user the right to read, which a Python in a closed home needs")
    return words


def own(folder, user):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


@pytest.fixture
def place():
    """A folder that every user may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def clone(place):
    """Makes a clone with the small parameters at a place of any name; with `git=False`, as a tarball leaves it."""

    def make(name="clone", git=True):
        project = small_run.make_project(place / name)
        make_home(place / "home/.prefect")
        if not git:
            shutil.copy(ROOT / ".dvc" / "config", project / ".dvc" / "config")
        return project

    return make


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return small_run.make_project(tmp_path_factory.mktemp("refused") / "clone")


def last_error(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert (lines, "Traceback" in done.stdout) == (done.stdout.splitlines()[-1:], False), done.stdout
    return lines[0]


def finished(done):
    assert (done.returncode, "Traceback" in done.stdout) == (0, False), done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        pytest.param("a{x}b", 1, "its path contains braces", marks=pytest.mark.soak),
        (os.fsdecode(b"caf\xe9"), 2, r"the project's path is not UTF-8: b'"),
    ],
    ids=["braces", "latin-1"],
)
def test_a_clone_whose_path_cannot_be_kept_is_refused_in_one_sentence(clone, name, code, reason):
    done = start(clone(name), *RUN)
    assert (done.returncode, reason in last_error(done)) == (code, True)


def test_a_folder_that_was_deleted_is_said_in_one_sentence(tmp_path):
    code = "import os, sys; from flows.cli import main; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); main(['run'])"
    done = start(ROOT, "-c", code, str(tmp_path), variables=HERE)
    assert (done.returncode, "the current folder was deleted" in last_error(done)) == (2, True)


CLOSED = ("", ".dvc/cache/files/md5/00", "data/corpus", "runs", "dvc.lock")
FOLDERS = """
import sys
from pathlib import Path
from types import SimpleNamespace
from flows.checks.preflight import check_folders
for project in sys.argv[1:]:
    print(*(found.text for found in check_folders(SimpleNamespace(project=Path(project)))))
"""


def test_a_clone_of_another_user_is_refused_with_the_place_and_its_owner(clone, place):
    first = clone()
    projects = [first, *(place / str(number) for number in range(1, len(CLOSED)))]
    for project, closed in zip(projects, CLOSED, strict=True):
        if project != first:
            shutil.copytree(first / ".dvc", project / ".dvc")
            shutil.copy(first / "dvc.yaml", project)
        path = project / closed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch() if closed == "dvc.lock" else path.mkdir(exist_ok=True)
        own(project, STRANGER)
        os.chown(path, 0, 0)
    own(place / "home", STRANGER)
    refusal = "{} belongs to root and is not writable for user {}. Use your own clone"
    done = start(first, *RUN, user=STRANGER)
    assert (done.returncode, refusal.format(first, STRANGER) in last_error(done)) == (1, True)
    checking = start(ROOT, "-c", FOLDERS, *map(str, projects), variables={"HOME": "/"}, user=STRANGER)
    for line, project, closed in zip(checking.stdout.splitlines(), projects, CLOSED, strict=True):
        assert line.startswith(refusal.format(project / closed, STRANGER)), checking.stdout


TEAM = 'active = "team"\n[profiles.team]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
DEPLOY, WORKER = ("-m", "flows", "deploy"), ("-m", "flows", "worker", "--pool", "cpu")
UNUSABLE = (
    (RUN, {"PREFECT_HOME": "/tmp/100%25"}, "", "/tmp/100%25"),
    (RUN, {}, 'active = "team', "Prefect cannot read its settings ("),
    (RUN, {"PREFECT_HOME": "/dev/null/prefect"}, "", "PREFECT_HOME"),
    (RUN, {}, f"{TEAM}PREFECT_LOGGING_LEVEL = 'LOUD'\n", "Input should be 'DEBUG', 'INFO'"),
    (DEPLOY, {}, "profiles = 4  # PREFECT_API_URL\n", "Prefect cannot read its settings ("),
    (WORKER, {}, TEAM, "does not answer"),
)


@pytest.mark.parametrize(
    ("words", "variables", "text", "reason"),
    [*UNUSABLE[:2], *(pytest.param(*row, marks=pytest.mark.soak) for row in UNUSABLE[2:])],
)
def test_what_prefect_cannot_read_write_or_reach_is_said_in_one_sentence_with_the_file(
    unchanged, tmp_path, words, variables, text, reason
):
    profiles = tmp_path / "profiles.toml"
    if text:
        profiles.write_text(text)
        variables = {"PREFECT_PROFILES_PATH": str(profiles)}
    done = start(unchanged, *words, variables=variables)
    assert (done.returncode, reason in last_error(done)) == (1, True), done.stdout
    assert (str(profiles) in last_error(done)) == bool(text)
    assert not (unchanged / "data").exists()


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_loopback_never_goes_through_a_proxy(name):
    code = "import os; from flows.runs import environment; environment.prepare_environment(); print(os.environ['{}'])"
    done = start(ROOT, "-c", code.format(name), variables={"no_proxy": "example.org", **HERE})
    assert done.stdout.strip() == "example.org,127.0.0.1,localhost,::1"


@pytest.mark.soak
def test_users_of_a_group_share_a_clone_as_the_refusal_says(clone):
    project = clone()
    (project / ".dvc" / "config.local").write_text("[cache]\n    shared = group\n")
    for path in (project, *project.rglob("*")):
        os.chown(path, 0, STRANGER)
        path.chmod(path.stat().st_mode | (0o2070 if path.is_dir() else 0o060))
    params = project / "params.yaml"
    for user, documents in ((STRANGER + 1, 60), (STRANGER + 2, 61)):
        params.write_text(params.read_text().replace("demo_documents: 60", f"demo_documents: {documents}"))
        finished(start(project, *CORPUS, variables={"HOME": "/"}, user=user, group=STRANGER, umask=0o002))
        assert (project / "data" / "corpus").stat().st_uid == user


@pytest.mark.soak
def test_a_clone_without_git_runs_and_says_so_once(clone):
    project = clone(git=False)
    for note in (True, False):
        assert ("is not in a git repository" in finished(start(project, *CORPUS))) == note
        assert "no_scm = true" in (project / ".dvc" / "config.local").read_text()
    assert finished(start(project, "-m", "dvc", "status", "corpus@text"))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "variables", "closed"),
    [
        ("clone", {"PYTHONOPTIMIZE": "2"}, 0),
        ("clone", {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, None),
        ("clone", {"SHELL": "/nowhere", "TZ": "Mars/Olympus"}, 1),
        ("clone", {"PYTHONWARNDEFAULTENCODING": "1", "COLUMNS": "10", "TERM": "dumb"}, 2),
        ("a b$c#d%41'f\"g[h]*?\u00e9&;=@:!~`(<|", {}, None),
    ],
)
def test_odd_paths_and_variables_and_closed_streams_do_not_end_a_run(clone, name, variables, closed):
    project = clone(name)
    finished(start(project, *CORPUS, variables=variables, closed=closed, umask=0o077))
    assert stat.S_IMODE((project / "data" / "corpus").stat().st_mode) == 0o700
    finished(start(project, *CORPUS, "--set", "corpus.demo_documents=61", variables=variables))


ELSEWHERE = {
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///{}",
    "PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///{}",
    "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK": "s3-bucket/team",
    "PREFECT_SERVER_API_AUTH_STRING": "team:secret",
    "PREFECT_SERVER_API_BASE_PATH": "/team",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_LOGGING_CONFIG_PATH": "/proc/none.yml",
    "PREFECT_TEST_MODE": "1",
    "PYTHONWARNINGS": "error",
}
"""Settings of someone who works with a server of a team; {} is its database."""


@pytest.mark.soak
@pytest.mark.parametrize(("where", "home"), [("variables", "/"), ("files", "")])
def test_a_container_in_which_most_is_missing_at_once_and_prefect_is_a_teams(clone, where, home):
    """Nor does anyone answer at its proxy."""
    project = clone("clone of mine", git=False)
    database, profiles = project.parent / "team.db", project.parent / "profiles.toml"
    with sqlite3.connect(database) as connection:
        connection.execute("create table alembic_version (version_num text)")
    before, settings = database.read_bytes(), {name: text.format(database) for name, text in ELSEWHERE.items()}
    variables = {"HOME": home, "PYTHONOPTIMIZE": "2", "LC_ALL": "C", "PYTHONUTF8": "0"}
    for scheme in ("http_proxy", "https_proxy", "all_proxy"):
        variables |= dict.fromkeys((scheme, scheme.upper()), "http://127.0.0.1:9")
    if where == "variables":
        variables |= settings
        tables = f"[server.database]\nconnection_url = '{settings['PREFECT_API_DATABASE_CONNECTION_URL']}'\n"
        (project / "prefect.toml").write_text(f"{tables}[results]\ndefault_storage_block = 's3-bucket/team'\n")
    else:
        lines = [f'{name} = "{value}"' for name, value in settings.items() if name.startswith("PREFECT_")]
        profiles.write_text("\n".join(['active = "team"', "[profiles.team]", *lines]))
        variables["PREFECT_PROFILES_PATH"] = str(profiles)
        (project / ".env").write_text("\n".join(f"{name}={value}" for name, value in settings.items()))
    own(project, STRANGER)
    output = finished(start(project, *CORPUS, variables=variables, user=STRANGER, closed=0, umask=0o077))
    assert database.read_bytes() == before
    assert "is not in a git repository" in output
    lent = project / environment.HOMES / str(STRANGER)
    assert output.count(f"this run uses {lent}") == 1
    assert [path.name for path in lent.rglob("prefect.db")] == ["prefect.db"]
    assert (project / "data" / "corpus").stat().st_uid == STRANGER
