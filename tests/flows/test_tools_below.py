"""Tools below a run that belong to someone else: what their settings, files and versions on a host may not change."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.prefect_home import make_home

RUN = """
import warnings
from flows.runs import environment
environment.prepare_environment()
from pathlib import Path
from flows.server import local_server
early = local_server.start_early(Path("server.log"))
import prefect
from prefect.client.orchestration import get_client

@prefect.flow(persist_result=True)
def answer():
    warnings.warn("of a tool", DeprecationWarning)
    return 42

with local_server.connect_server(Path("server.log"), early) as is_own:
    assert is_own
    state = answer(return_state=True)
    with get_client(sync_client=True) as client:
        print(state.name, len(client.read_flow_runs()))
if early is not None:
    early.end()
"""
TEAM = {
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///TEAM",
    "PREFECT_API_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///TEAM",
    "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK": "s3-bucket/team",
    "PREFECT_SERVER_API_AUTH_STRING": "team:secret",
    "PREFECT_SERVER_API_BASE_PATH": "/team",
    "PREFECT_LOGGING_CONFIG_PATH": "/proc/none.yml",
}
"""Settings of a team's server; TEAM is its database."""
SERVER_TABLE = "[server.database]\nconnection_url = 'sqlite+aiosqlite:///TEAM'\n"
RESULTS_TABLE = "[results]\ndefault_storage_block = 's3-bucket/team'\n"
PROFILE = 'active = "team"\n[profiles.team]\n' + "\n".join(f'{name} = "{value}"' for name, value in TEAM.items())


@pytest.mark.parametrize(
    ("variables", "files"),
    [
        ({**TEAM, "PREFECT_TEST_MODE": "1", "PREFECT_DEBUG_MODE": "1"}, {}),
        ({"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1"}, {}),
        ({}, {".env": "\n".join(f"{name}={value}" for name, value in TEAM.items()), "home/profiles.toml": PROFILE}),
        ({}, {"prefect.toml": SERVER_TABLE + RESULTS_TABLE}),
    ],
    ids=["environment", "python", "dotenv and profile", "file"],
)
def test_a_plain_run_uses_its_own_prefect_whatever_a_team_configured(
    tmp_path: Path, variables: Mapping[str, str], files: Mapping[str, str]
) -> None:
    team = tmp_path / "team.db"
    with sqlite3.connect(team) as database:
        database.execute("create table alembic_version (version_num text)")
    before = team.read_bytes()
    project, home = tmp_path / "project", make_home(tmp_path / "home")
    project.mkdir()
    users = sqlite3.connect(home / "prefect.db").execute("select count(*) from flow_run").fetchone()
    for name, text in files.items():
        path = tmp_path / name if "/" in name else project / name
        path.write_text(text.replace("TEAM", str(team)))
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own |= {"PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT)}
    own |= {name: value.replace("TEAM", str(team)) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=project, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    log = project / "server.log"
    assert done.returncode == 0, done.stdout + log.read_text()
    assert done.stdout.splitlines()[-1] == "Completed 1"
    assert "Traceback" not in done.stdout + log.read_text()
    assert team.read_bytes() == before
    assert sqlite3.connect(home / "prefect.db").execute("select count(*) from flow_run").fetchone() == users
