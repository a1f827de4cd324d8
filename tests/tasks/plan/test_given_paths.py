"""Paths that parameters name: nothing given is passed over, nothing is written where it would vanish."""

import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.runs import checkout
from tasks.corpus.corpus import make_corpus
from tasks.downstream.squad.ask import find_model
from tasks.params.schema import validate_params
from tasks.plan.named_files import (
    READ,
    check_input_paths,
    check_output_folders,
    find_parameters,
    inspect_files,
    list_files,
)
from tasks.plan.plan_file import make_plan
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tasks.pretraining.rows.prepared_files import read_prepared_batches
from tasks.records.hub_inputs import open_dataset
from tasks.records.interpretation import Interpretation
from tasks.records.text_files import read_lines
from tasks.stage.errors import InputError
from tasks.vocabulary.hub_tokenizer import load_hub_vocabulary, read_vocabulary
from tests.places import ROOT
from tests.plans import prepare_own
from tests.tasks.corpus.made_corpus import documents_of
from tests.tasks.corpus.made_corpus import params as corpus_params
from tests.tasks.downstream.entries import values_with
from tests.tasks.downstream.texts.glue_checkout import make_glue_data
from tests.tasks.tiny_model import write_tiny_model


def linked_file(folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("Not given.\n")
    (folder / "b.txt").symlink_to("../secret.txt")


def linked_folder(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    (folder.parent / "other/more.txt").write_text("More.\n")
    (folder / "sub").symlink_to("../other")


def dangling(folder: Path) -> None:
    (folder / ".#a.txt").symlink_to("user@host.1234")


def damaged_name(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/\udcff.txt").write_text("B.\n")  # one byte 0xff, as Python has it


TROUBLES: dict[str, tuple[Callable[[Path], None], str]] = {
    "linked folder": (linked_folder, "1 link(s), sub, which"),
    "linked file": (linked_file, "1 link(s), b.txt, which"),
    "dangling link": (dangling, "1 broken link(s), .#a.txt"),
    "pipe": (lambda folder: os.mkfifo(folder / "b.txt"), "1 pipe(s), socket(s) or device(s), b.txt"),
    "name": (damaged_name, "1 name(s) that are not UTF-8, sub/\\xff.txt"),
}


def prepared(path: Path) -> list[Any]:
    phase = validate_params(values_with(pretrain_rows={"phase1": {"path": str(path)}})).pretrain_rows.phase1
    return list(read_prepared_batches(phase, "files", "pretrain_rows.phase1", Interpretation()))


LISTING: dict[str, Callable[[Path], Any]] = {
    "corpus.path": documents_of,
    "pretrain_rows.phase1.path": prepared,
    "downstream.glue-sst2.data.path": lambda path: make_glue_data("sst2", path, path.parent / "made"),
    "corpus.dataset": lambda path: list(open_dataset("corpus", str(path), None, "train", None)),
}
"""Parameter -> what reads all of a folder that it names."""


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("key", LISTING)
def test_what_a_listing_would_pass_over_is_refused_by_name(tmp_path: Path, key: str, trouble: str) -> None:
    make, words = TROUBLES[trouble]
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "a.txt").write_text("A.\n")
    make(folder)
    with pytest.raises(InputError) as caught:
        LISTING[key](folder)
    assert words in str(caught.value)
    assert key in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(name="shared")
def folder_that_all_users_reach() -> Iterator[Path]:
    """tmp_path belongs to the user of the tests alone."""
    with tempfile.TemporaryDirectory(prefix="podium-given-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


AS_NOBODY = """
import os, sys
from tasks.corpus import corpus, documents
from tasks.plan import named_files
from tasks.records import text_files  # what is imported later, this user may not read
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.argv = ["corpus"]
corpus.run_main(corpus.main)
"""


@pytest.mark.parametrize(
    ("path", "closed", "mode", "words"),
    [
        ("given", "given/closed", 0o300, "contains files that this user cannot read, closed"),
        ("given", "given/closed", 0o600, "contains files that this user cannot read, closed"),
        ("given", "given/b.txt", 0o000, "contains files that this user cannot read, b.txt (Permission denied): "),
        ("given/closed/b.txt", "given/closed", 0o000, "cannot be read (Permission denied)"),
    ],
)
def test_what_this_user_cannot_read_ends_the_stage_in_one_line(
    shared: Path, path: str, closed: str, mode: int, words: str
) -> None:
    for name in ("a.txt", "b.txt", "closed/b.txt"):
        (shared / "given" / name).parent.mkdir(parents=True, exist_ok=True)
        (shared / "given" / name).write_text("A.\n")
    (shared / "params.yaml").write_text(yaml.safe_dump(values_with(corpus={"source": "files", "path": path})))
    (shared / closed).chmod(mode)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_NOBODY]
    done = subprocess.run(command, cwd=shared, env=environment, text=True, capture_output=True, timeout=120)
    (shared / closed).chmod(0o755)
    assert done.stderr.startswith(f"error: corpus.path='{path}' {words}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1
    assert not list((shared / "data").glob("*"))


def test_a_disk_that_does_not_give_the_file_back_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")  # reading it gives an I/O error
    with pytest.raises(InputError, match=r"a\.txt .*offset 0 .*Input/output error"):
        list(read_lines(tmp_path / "a.txt", "corpus.path"))


def test_the_path_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/a.txt").write_text("A.\n")
    (tmp_path / "given").symlink_to("disk")
    assert documents_of(tmp_path / "given") == [("a.txt:0", "", "A.")]


def test_a_folder_of_text_called_runs_is_seen_by_dvc(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dvcignore", tmp_path)
    names = ["inputs/corpus/runs/a.txt", "inputs/corpus/.venv/a.txt", "runs/a.txt", ".venv/a.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    subprocess.run(["dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    shown = subprocess.run(["dvc", "check-ignore", *names], cwd=tmp_path, text=True, capture_output=True)
    assert shown.stdout.split() == ["runs/a.txt", ".venv/a.txt"]


def test_every_file_of_a_folder_is_read_or_counted(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    plain = "a.txt b.TXT sub/c.jsonl sub/d.pdf .hidden.txt .git/config e.txt~ none sub/.txt grüße.txt"
    names = [*plain.split(), "line\nend.txt", " .txt"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "A."}\n')
    reading = make_corpus(corpus_params(path=str(folder)), tmp_path / "made").reading
    assert (reading.files, len(reading.ignored)) == (6, 6)
    assert sorted(path.relative_to(folder).as_posix() for path in list_files(folder, "corpus.path")) == sorted(names)


def vocabulary(folder: Path) -> Path:
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    return folder / "vocab.txt"


def test_a_model_of_the_hubs_cache_is_a_folder_of_links_to_files_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    blob = vocabulary(tmp_path / "blobs").rename(tmp_path / "blobs/0123")
    snapshot = tmp_path / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "vocab.txt").symlink_to(os.path.relpath(blob, snapshot))
    assert len(read_vocabulary(snapshot, "tokenizer.path")) == 6
    assert len(load_hub_vocabulary(str(snapshot), None, True).entries) == 6
    assert inspect_files(snapshot, "base_model.path")[1] == []
    (tmp_path / "other").mkdir()
    secret = vocabulary(tmp_path / "other")
    (snapshot / "more.txt").symlink_to(secret)
    assert "more.txt" in inspect_files(snapshot, "base_model.path")[1][0]


def test_a_link_of_a_model_folder_stays_in_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", ["ada"])
    (tmp_path / "linked").symlink_to(folder)
    assert find_model(str(tmp_path / "linked")).max_positions == 512
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    assert find_model(str(tmp_path / "linked")).max_positions == 512
    assert inspect_files(tmp_path / "linked", "base_model.path")[1] == []
    (folder / "weights").rename(tmp_path / "weights")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../weights")
    with pytest.raises(InputError, match=r"model\.safetensors is a link"):
        find_model(str(folder))
    assert "contains 1 link(s), model.safetensors, which" in inspect_files(folder, "base_model.path")[1][0]


def project(folder: Path) -> Path:
    """A checkout with all paths of the parameters, and no code."""
    for path in find_parameters(values_with(), READ).values():
        (folder / path).mkdir(parents=True, exist_ok=True)
    for part in checkout.CODE:
        (folder / part).touch()
    return folder


def test_links_in_a_folder_that_is_not_read_are_let_be_unless_dvc_trips_over_them(tmp_path: Path) -> None:
    root = project(tmp_path)
    linked_file(root / "inputs/corpus")
    assert check_input_paths(values_with(corpus={"source": "demo"}), root) == []
    assert len(check_input_paths(values_with(corpus={"source": "files"}), root)) == 1
    dangling(root / "inputs/corpus")
    assert len(check_input_paths(values_with(corpus={"source": "demo"}), root)) == 1


@pytest.mark.parametrize("given", [".", "..", "inputs/..", "/"])
def test_a_path_that_holds_the_project_is_refused(tmp_path: Path, given: str) -> None:
    root = project(tmp_path)
    problems = check_input_paths(values_with(corpus={"source": "files", "path": given}), root)
    assert [problem.partition(":")[0] for problem in problems] == [f"corpus.path='{given}' contains the project itself"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("~/text", "~ is not expanded"),
        ("a\0b", "cannot be read (embedded null byte)"),
        ("x" * 300, "cannot be read (File name too long)"),
        ("params.yaml/x", "cannot be read (Not a directory)"),
        ("\udcff", "corpus.path='\\xff' is not UTF-8"),
        ("\ud800", "corpus.path='\\ud800' is not UTF-8"),
        ("a\x1b[31m", "corpus.path='a\\x1b[31m' does not exist"),
    ],
)
def test_a_path_that_means_nothing_is_refused_in_one_sentence(tmp_path: Path, given: str, words: str) -> None:
    root = project(tmp_path)
    (root / "params.yaml").touch()
    problems = check_input_paths(values_with(corpus={"path": given}), root)
    assert len(problems) == 1
    assert words in problems[0]


PLACES = ("own/", "inputs/../../sibling", "linked/../far", "${x}", "grüße", "inputs//corpus", "$(touch a b)")


@pytest.mark.parametrize("given", PLACES)
def test_a_path_means_the_same_place_in_the_checkout_of_a_run(tmp_path: Path, given: str) -> None:
    root = project(tmp_path / "project")
    for place in ("own", "../elsewhere/deep", "../elsewhere/far", "../sibling", *PLACES[3:]):
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "linked").symlink_to("../elsewhere/deep")
    folder = prepare_own(root, values_with(corpus={"path": given}), "run")
    written = yaml.safe_load((folder / "params.yaml").read_text())["corpus"]["path"]
    assert (folder / written).samefile(root / given)
    assert (written == "inputs/corpus") == (given == "inputs//corpus"), (
        "the same words, so that DVC restores what is made"
    )


def test_a_checkout_works_where_runs_is_a_link_and_finds_folders_in_place_of_hub_names(tmp_path: Path) -> None:
    root = project(tmp_path / "project")
    (tmp_path / "disk/of/runs").mkdir(parents=True)
    (root / "runs").symlink_to("../disk/of/runs")
    (root / "own").mkdir()
    changes = {"corpus": {"path": "own", "dataset": "own"}, "tokenizer": {"repository": "user/name"}}
    folder = prepare_own(root, values_with(**changes), "run")
    written = yaml.safe_load((folder / "params.yaml").read_text())
    assert (folder / "inputs").samefile(root / "inputs")
    assert all((folder / written["corpus"][name]).samefile(root / "own") for name in ("path", "dataset"))
    assert written["tokenizer"]["repository"] == "user/name"


def written_problems(values: dict[str, Any], targets: Path) -> list[str]:
    return check_output_folders(values, targets, make_plan(define(validate_params(values))))


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    """A project, and the checkout of a run called mine that fine-tunes for the entry other."""
    values = values_with()
    for folder, entry in ((tmp_path, "squad"), (tmp_path / "runs/checkouts/mine", "other")):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "dvc.yaml", folder)
        write_plan(folder, define(validate_params({**values, "downstream": {entry: values["downstream"]["squad"]}})))
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to("models")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("evaluation/squad/a/b", "is in evaluation/squad, which the stage evaluate@squad"),
        ("link/squad", "is in models/squad"),
        ("published/../models/squad", "is in models/squad"),
        ("models", "contains models/phase1 of the stage pretrain@phase1"),
        ("runs/checkouts/new/models/squad", "is in models/squad"),
        ("runs/checkouts/mine/models/other", "is in models/other"),
        ("runs/checkouts/mine", "contains a whole checkout"),
        (".", "contains a whole checkout"),
        ("tasks/mine", "is in tasks, which Podium uses"),
        (".git", "is in .git, which Podium uses"),
        (".dvc/cache", "is in .dvc, which Podium uses"),
        ("released/squad", "is in released, which Podium uses"),
    ],
)
def test_a_release_in_a_folder_that_would_vanish_is_refused(targets: Path, path: str, reason: str):
    for given in (path, str(targets / path)):
        (problem,) = written_problems(values_with({"squad": {"publish": {"folder": given}}}), targets)
        assert problem.startswith(f"downstream.squad.publish.folder='{given}' {reason}")


@pytest.mark.parametrize("path", ["published/x/../podium-demo", "same"])
def test_two_entries_do_not_share_a_target_however_it_is_written(targets: Path, path: str):
    (targets / "published/podium-demo").mkdir(parents=True)
    (targets / "same").symlink_to("published/podium-demo")
    values = values_with()
    values["downstream"]["other"] = copy.deepcopy(values["downstream"]["squad"])
    values["downstream"]["other"]["publish"]["folder"] = path
    (problem,) = written_problems(values, targets)
    assert problem.startswith(f"downstream.other.publish.folder='{path}' is the folder of downstream.squad.publish")


@pytest.mark.parametrize(
    "path", ["published/x", "out", "models/mine", "inputs/released/x", "runs/mine", "/elsewhere", ".."]
)
def test_other_folders_take_a_release(targets: Path, path: str):
    assert written_problems(values_with({"squad": {"publish": {"folder": path}}}), targets) == []


def test_checkpoints_and_curves_are_kept_out_of_outs_as_well(targets: Path):
    values = values_with(checkpoint={"remote": "models/phase1"}, tracking={"folder": "metrics/squad.json"})
    assert [text.split(" is in ")[0] for text in written_problems(values, targets)] == [
        "checkpoint.remote='models/phase1'",
        "tracking.folder='metrics/squad.json'",
    ]
    free = values_with(checkpoint={"remote": "s3://bucket/models/phase1"}, tracking={"folder": "runs"})
    assert written_problems(free, targets) == []
