"""Files of deploy/: the steps of the image, a Slurm job, the services of compose."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from flows.workers.deploy import POOLS
from tests.places import ROOT

DEPLOY = ROOT / "deploy"


def read_ignored():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#*"]
    return {line[1:] for line in lines if line[0] == "!"}, [line for line in lines if line[0] != "!"]


def list_tracked():
    return subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()


def test_an_image_gets_what_git_tracks_and_no_credentials():
    let_in, kept_out = read_ignored()
    tracked = {name if name.startswith(".dvc/") else name.split("/")[0] for name in list_tracked()}
    assert let_in == {*tracked, ".git"}
    assert {".git/config", ".git/credentials"} <= {*kept_out}


@pytest.mark.soak
def test_the_steps_of_the_image_make_a_host_that_works(tmp_path):
    """COPY and RUN, but for the system's packages, in an empty folder and with an empty home."""
    context, work, home = (tmp_path / name for name in ("context", "srv", "home"))
    home.mkdir()
    work.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, context], check=True)
    for pattern in read_ignored()[1]:
        for path in context.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    kept = ("PATH", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "PIP_FIND_LINKS")
    environment = {name: value for name, value in os.environ.items() if name in kept} | {"HOME": str(home)}
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "").replace("TORCH=${TORCH}", "")
    for step, words in re.findall(r"^(COPY|RUN) (.*)$", text, re.MULTILINE):
        if step == "RUN" and "apt-get" not in words:
            subprocess.run(["bash", "-eu", "-c", words], cwd=work, env=environment, check=True)
        elif step == "COPY":
            _, *sources, target = shlex.split(words)
            for source in sources:
                if (context / source).is_dir():
                    shutil.copytree(context / source, work / target, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy2(context / source, work / target)
    environment |= {"PATH": f"{work / '.venv/bin'}:{environment['PATH']}"}
    changes = subprocess.run(["git", "status", "--porcelain"], cwd=work, check=True, text=True, stdout=subprocess.PIPE)
    assert changes.stdout == ""  # a release states its revision, without changes
    run = ["podium", "run", "--to", "corpus@text"]
    subprocess.run(run, cwd=work, env=environment, check=True)


@pytest.mark.parametrize(("code", "queued"), [(0, ""), (1, ""), (4, "requeue 7\n")])
def test_a_slurm_job_that_pauses_is_queued_again(tmp_path, code, queued):
    log, now = tmp_path / "log", int(time.time())
    for name, text in {
        "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
        "scontrol": f'echo "$@" >> {log}',
        "podium": f'[[ "$*" == "finetune squad --name a b" && $PODIUM_STOP_AT -eq {now + 3480} ]] && exit {code}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now + 3600), "PODIUM": str(tmp_path / "podium")}
    words = ["bash", DEPLOY / "podium.sbatch", "finetune", "squad", "--name", "a b"]
    done = subprocess.run(words, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **job}, check=False)
    assert done.returncode == code
    assert (log.read_text() if log.exists() else "") == queued


def test_services_and_pods_are_workers_of_pools_that_deploy_makes():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    sets = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pods = [pod["spec"]["template"]["spec"]["containers"][0]["args"] for pod in sets]
    commands = [service["command"] for service in services.values() if service["image"] == "podium"]
    commands = [command for command in (*filter(None, commands), *pods) if command != ["deploy"]]
    assert {(command[0], command[2]) for command in commands} == {("worker", pool) for pool in {*POOLS} - {"ipu"}}
    help_text = [sys.executable, "-m", "flows", "worker", "--help"]
    assert "--pool" in subprocess.run(help_text, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
