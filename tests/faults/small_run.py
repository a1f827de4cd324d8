"""A run of every stage, from the corpus to the published folder, that is as small as the stages allow."""

import hashlib
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from flows.runs.checkout import CODE
from ipu_model.core.files import write_json
from tasks.downstream.inference.fetched_releases import RECORD
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tasks.release.release import CARD, STAGE_RUNS
from tasks.stage.artifacts import FETCHED
from tests.faults import processes
from tests.places import DVC_FOLDERS, ROOT, copy_project
from tests.plans import stages_of, values_with
from tests.prefect_home import make_home

SMALL = (
    "corpus.demo_documents=60",
    "tokenizer.vocabulary_size=300",
    "downstream.squad.data.demo_train=24",
    "downstream.squad.data.demo_dev=12",
    "pretrain_rows.phase1.duplicates=1",
    "pretrain_rows.phase1.row_length=32",
    "pretrain_rows.phase2.row_length=64",
    "downstream.squad.rows.row_length=128",
    "downstream.squad.rows.max_question_length=32",
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.intermediate_size=32",
    "model.max_positions=128",
    "model.hidden_dropout=0.1",
    "pretrain.checkpoint_every_updates=2",
    "pretrain.phase1.steps=60",
    "pretrain.phase1.global_batch_size=8",
    "pretrain.phase2.steps=40",
    "pretrain.phase2.global_batch_size=4",
    "downstream.squad.finetune.epochs=6",
    "downstream.squad.finetune.global_batch_size=4",
    "downstream.squad.finetune.checkpoint_every_updates=2",
    "downstream.squad.gate.min_f1=0",
    "downstream.squad.gate.above_baseline=false",
    "downstream.squad.publish.folder=published/small",
)
PLAN = stages_of(values_with(*SMALL))
PUBLISH = "publish@squad"
SAME_BYTES = ("data", "models", "predictions", "evaluation", "metrics", "plots")
"""What is equal byte for byte in two runs; measurements/ has the rest."""
TEMPORARY = (".partial", ".tmp", ".temp", "~")
SOME_STAGES = """
import sys
from flows.runs import stage_plan
stages = sys.argv.pop(1).split(",")
stage_plan.select_stages = lambda *what, **ever: stages
from flows import cli
cli.main(["run", *sys.argv[1:]])
"""
"""The flow with another plan; DVC itself looks at everything that comes before each of its stages."""


def make_project(folder):
    """A checkout with the small parameters, without git; nothing has run in it."""
    copy_project(folder)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    values = resolve(read_yaml(folder / "params.yaml"), None, SMALL)
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    write_plan(folder, define(validate_params(values)))
    # As the flow fetches it before the first release; `dvc repro` alone would record that nothing was fetched.
    (folder / FETCHED / "squad").mkdir(parents=True)
    write_json(folder / FETCHED / "squad" / RECORD, {"releases": []})
    return folder


def code_hash():
    """Twelve hexadecimal digits of everything a small project is built from."""
    digest = hashlib.sha256(repr(SMALL).encode())
    for name in (*CODE, "inputs", "params.yaml"):
        for path in _files(ROOT / name):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass
class Case:
    """One project under test and the processes that work in it."""

    project: Path
    home: Path
    """Of Prefect's and DVC's own files."""
    api_url: str | None = None
    """Of a Prefect server; None: every run starts one of its own."""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        make_home(self.home / "PREFECT_HOME")

    def environment(self):
        switches = ("DVC_NO_ANALYTICS", "DO_NOT_TRACK", "PODIUM_THREADS", "PYTHONDONTWRITEBYTECODE")
        folders = {name: str(self.home / name) for name in ("PREFECT_HOME", *DVC_FOLDERS)}
        settings = {**dict.fromkeys(switches, "1"), **folders, processes.MARK: self.mark}
        if self.api_url is not None:
            settings["PREFECT_API_URL"] = self.api_url
        return {**{k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}, **settings, **self.extra}

    def start(self, *words, log=None):
        """Start a command of this Python in the project; its output goes to `log`."""
        with (log or self.home / f"{self.mark}.log").open("w") as stream:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=self.project,
                env=self.environment(),
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *words):
        """Run a command of this Python in the project to its end; stdout holds stderr too."""
        log = self.home / f"{uuid.uuid4().hex}.log"
        code = self.start(*words, log=log).wait(timeout=400)
        return subprocess.CompletedProcess(words, code, log.read_text())

    def succeed(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def stage(self, name):
        return ["-m", "tasks.release.publish", "squad"] if name == PUBLISH else ["-m", "dvc", "repro", name]

    def flow(self, *names, publish=True):
        words = [*(["-c", SOME_STAGES, ",".join(names)] if names else ["-m", "flows", "run"]), "--verbose"]
        return words if publish else [*words, "--no-publish"]


def hashes(folder):
    """Path -> SHA-256 of what is equal in two runs."""
    files = [path for path in _files(folder) if path.name not in (CARD, STAGE_RUNS)]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def digests(project):
    """Path -> SHA-256 of everything that must be the same in every run of the same parameters."""
    places = (*SAME_BYTES, "published/small")
    return {f"{place}/{name}": sha256 for place in places for name, sha256 in hashes(project / place).items()}


def require_same(project, reference):
    """No file is missing, more, or another than in the undisturbed run."""
    present = digests(project)
    assert sorted(name for name in {*present, *reference} if present.get(name) != reference.get(name)) == []


def require_whole(project, reference, published=False):
    """All is as in the undisturbed run; no temporary names outside runs/; JSON files and objects of DVC are whole."""
    require_same(project, reference)
    if published:
        require_published_once(project)
    for path in _files(project):
        inside = path.relative_to(project)
        if inside.parts[0] != "runs" and inside.parts[:2] != (".dvc", "tmp"):
            assert not any(part.endswith(TEMPORARY) for part in inside.parts), f"{inside} was left behind"
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
    for path in _files(project / ".dvc" / "cache" / "files" / "md5"):
        named = path.parent.name + path.name.removesuffix(".dir")
        assert hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == named


def require_published_once(project):
    """published/ holds one release, whole, and the receipt is about it."""
    published = project / "published"
    assert sorted(path.name for path in published.glob("small*")) == ["small", "small.releases"]
    assert len(list((published / "small.releases").glob("release-*"))) == 1
    receipt = json.loads((project / "reports" / "publish-squad.json").read_text())
    assert hashes(published / "small") == receipt["files"]


def _files(place):
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
