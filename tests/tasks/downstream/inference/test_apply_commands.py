"""The commands `podium evaluate` and `podium predict`: what they refuse and leave behind, and standard streams."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from flows.cli import cli
from flows.runs import environment
from tasks.stage.errors import PodiumError
from tests.places import ROOT
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS

GOOD = {
    "questions.csv": "question,context\nword1 ?,word1 word2 word3\nword4 ?,word5 word4\n",
    "sentences.csv": "sentence\nword1 word2\nword3\n",
    "labelled.tsv": "word1 word2\t1\nword3\t0\n",
    "semicolon.csv": "Sentence;label\nword1, word2;1\nword3;0\n",
    "rows.json": '[{"id": 7, "sentence": "word1 word2", "label": 1}, {"id": 8, "sentence": "word3", "label": 0}]',
    "unknown.csv": "text,label\nword1,red\nword2,pink\nword3,RED\n",
    "tagged.csv": "tokens;tags\nword1 word2;B-red O\nword3;B-pink\n",
}
BAD = {
    "open.csv": 'question,context\n"a,b\nc,d\n',
    "questions.json": '{"data": [{"paragraphs": [{"qas": [{"id": "1", "answers": [{"text": "a"}]}]}]}]}',
    "answers.json": '{"1": "a"}',
    "odds.json": '{"1": 0.5}',
    "empty.jsonl": "",
    "header.csv": "question,context\n",
    "columns.csv": "id,questions,contexts\n1,a,b\n",
    "without.json": '{"data": [{"paragraphs": [{"qas": [{"id": "1", "question": "a"}]}]}]}',
    "blank.jsonl": '{"question": "a", "context": " "}\n{"question": "", "context": "b"}\n',
    "twice.jsonl": '{"id": 1, "question": "a", "context": "b"}\n' * 2,
    "text.txt": "word1 word2\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of three tasks and of none, good files and bad ones; it is not in a clone."""
    folder = tmp_path_factory.mktemp("place")
    write_head_model(folder / "qa", "question_answering", (), WORDS)
    write_head_model(folder / "sst2", "sequence_classification", ("negative", "positive"), WORDS)
    write_head_model(folder / "odd", "token_classification", ("red", "green", "blue", "grey"), WORDS)
    write_head_model(folder / "base", "pretraining", (), WORDS)
    write_head_model(folder / "colours", "sequence_classification", ("blue", "red"), WORDS)
    write_head_model(folder / "names", "token_classification", ("O", "B-red", "I-red"), WORDS)
    for name, text in (GOOD | BAD).items():
        (folder / name).write_text(text)
    (folder / "link.json").symlink_to("answers.json")
    (folder / "second.json").hardlink_to(folder / "answers.json")
    return folder


def podium(
    place: Path, *words: str, given: str | None = None, largest: int | None = None, tmp: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in `place`; no file may grow beyond `largest` bytes, which is how a disk looks that is full."""
    limited = None if largest is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if largest is not None:  # Python leaves half of what it compiles, and others would stumble over it
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "flows", *words],
        cwd=place,
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, **({"TMPDIR": str(tmp)} if tmp else {})},
        preexec_fn=limited,
    )


REFUSED: list[tuple[Sequence[str], int, str]] = [
    (["predict", "nothing/at/all", "questions.csv"], 1, "nothing/at/all not found"),
    (["predict", ".", "questions.csv"], 1, "config.json not found"),
    (["predict", "base", "questions.csv"], 1, "BertForPreTraining, not a fine-tuned model"),
    (["predict", "odd", "sentences.csv"], 1, "has the classes red, green, blue, grey"),
    (["predict", "qa", "empty.jsonl"], 1, "empty.jsonl is empty"),
    (["predict", "qa", "header.csv"], 1, "contains no question (header.csv has a header and no rows)"),
    (["predict", "qa", "open.csv"], 1, "open.csv, line 2: the quote before 'a,b' is not closed"),
    (
        ["predict", "sst2", "semicolon.csv", "--separator", ","],
        1,
        "no column 'sentence'; its columns are Sentence;label",
    ),
    (["predict", "sst2", "rows.json", "rows.json", "--force"], 2, "rows.json is an input of this"),
    (["predict", "sst2", "rows.json", "sst2/config.json", "--force"], 2, "sst2/config.json is an input of this"),
    (
        ["score", "questions.json", "answers.json", "--output", "answers.json"],
        2,
        "answers.json is an input of this",
    ),
    (["score", "questions.json", "answers.json", "--output", "link.json"], 2, "link.json is an input of this"),
    (["score", "questions.json", "answers.json", "--output", "second.json"], 2, "second.json is an input of this"),
    (["score", "questions.json", "answers.json", "--output", "questions.json"], 2, "questions.json is an input of"),
    (
        ["score", "questions.json", "answers.json", "--na-probs", "odds.json", "--output", "odds.json"],
        2,
        "odds.json is an input of this",
    ),
    (["compare", "answers.json", "second.json", "--output", "link.json"], 2, "link.json is an input of this"),
    (["compare", "answers.json", "odds.json", "--changed", "odds.json"], 2, "odds.json is an input of this"),
    (
        ["compare", "answers.json", "odds.json", "--questions", "questions.json", "--output", "questions.json"],
        2,
        "questions.json is an input of this",
    ),
    (
        ["compare", "answers.json", "odds.json", "--output", "new.json", "--changed", "new.json"],
        2,
        "--output and --changed name the same file",
    ),
    (["evaluate", "colours", "sentences.csv", "--column", "text=sentence"], 1, "no column 'label'"),
    (["evaluate", "colours", "semicolon.csv", "--column", "text=Sentence"], 1, "no label is a class of the model"),
    (["predict", "qa", "columns.csv"], 1, "no column 'context' and no column 'question'"),
    (["predict", "qa", "columns.csv"], 1, "questions for question? Set --column context=NAME, --column question=NAME"),
    (["predict", "qa", "without.json"], 1, "context is missing: data[0].paragraphs[0].qas[0]"),
    (["predict", "qa", "blank.jsonl"], 1, "context is empty: line 1\n  question is empty: line 2"),
    (["predict", "qa", "twice.jsonl", "out.json"], 1, "1 duplicate id(s)"),
    (
        ["predict", "qa", "text.txt"],
        1,
        "has the suffix .txt: the file on the command line needs one file of questions (.json, .jsonl",
    ),
    (["predict", "qa", "sst2"], 1, "sst2 is a folder"),
    (["predict", "qa", "no.csv"], 1, "no.csv"),
    (["predict", "sst2", "questions.csv"], 1, "no column 'sentence'"),
    (["predict", "sst2", "sentences.csv", "out.json"], 2, "cannot hold predictions for examples. Use .jsonl"),
    (["predict", "sst2", "sentences.csv", "--n-best", "2"], 2, "--n-best 2 is not supported"),
    (["predict", "sst2", "sentences.csv", "--task", "qnli"], 2, "--task qnli does not fit; valid: classif"),
    (["predict", "qa", "questions.csv", "out.txt"], 2, "OUT is out.txt, but it must end in"),
    (["predict", "qa", "questions.csv", "no/out.csv"], 1, "no not found. Create the folder"),
    (["predict", "qa", "questions.csv", "labelled.tsv"], 2, "already exists: name another"),
    (["predict", "qa", "questions.csv", "--row-length", "65"], 2, "65 tokens are too long"),
    (["predict", "qa", "questions.csv", "--doc-stride", "64"], 2, "doc_stride=64 must be smaller"),
    (["predict", "qa", "questions.csv", "--column", "context"], 2, "must be PART=NAME"),
    (["predict", "qa", "questions.csv", "--precision", "fp16", "--runtime", "cpu"], 1, "the cpu runtime has no fp16"),
    (["evaluate", "sst2", "sentences.csv"], 1, "no column 'label'"),
    (["evaluate", "sst2", "labelled.tsv", "--output", "qa"], 1, "qa already exists"),
    (["evaluate", "qa", "questions.csv"], 1, "or --column answer_text=NAME and --column answer_start=NAME"),
]


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=lambda one: "" if isinstance(one, int) else None)
def test_what_cannot_be_is_one_clear_error_and_leaves_nothing(
    place: Path,
    tmp_path: Path,
    words: Sequence[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sorted(place.rglob("*"))
    monkeypatch.chdir(place)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "prepare_environment", lambda: None)
    with pytest.raises((PodiumError, click.ClickException)) as refused:
        cli.main(list(words), prog_name="podium", standalone_mode=False)
    assert refused.value.exit_code == code
    error = refused.value
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert said in message
    assert "(log:" not in message, "a log that is gone"
    assert capsys.readouterr().out == ""
    assert sorted(place.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["predict", "sst2", "sentences.csv", "out.csv"], ["evaluate", "sst2", "labelled.tsv", "--output", "made"]]
)
@pytest.mark.parametrize("largest", [100, 2500])
def test_a_full_disk_leaves_nothing(place: Path, tmp_path: Path, words: Sequence[str], largest: int) -> None:
    before = sorted(place.rglob("*"))
    done = podium(place, *words, largest=largest, tmp=tmp_path)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(place.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_tables_of_people_are_read_and_what_was_found_is_said(place: Path, tmp_path: Path) -> None:
    for name, ids in (("semicolon.csv", ["1", "2"]), ("rows.json", ["7", "8"])):
        done = podium(place, "predict", "sst2", name)
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ids, done.stderr
        made = podium(place, "evaluate", "sst2", name, "--output", str(tmp_path / name), "--json")
        assert json.loads(made.stdout)["examples"] == 2, made.stderr
        for said in (done.stderr, made.stderr) if name == "semicolon.csv" else ():
            assert "semicolon.csv: fields are separated by semicolons" in said
            assert "column 'Sentence' is read as 'sentence'" in said


@pytest.mark.parametrize(("model", "name", "count"), [("colours", "unknown.csv", 2), ("names", "tagged.csv", 1)])
def test_labels_that_the_model_does_not_have_are_counted(
    place: Path, tmp_path: Path, model: str, name: str, count: int
) -> None:
    done = podium(place, "evaluate", model, name, "--output", str(tmp_path / "made"))
    assert f"{count} labels unknown to the model, counted as wrong" in done.stderr


def test_standard_streams_hold_records_and_nothing_else_in_any_format(place: Path) -> None:
    lines = podium(place, "predict", "qa", "-", "--format", "csv", given=GOOD["questions.csv"])
    assert lines.stdout.splitlines()[0] == "id,answer,score,probability,start,end", lines.stderr
    assert [line.split(",")[0] for line in lines.stdout.splitlines()[1:]] == ["1", "2"]
    answers = podium(place, "predict", "qa", "questions.csv", "--format", "json")
    assert json.loads(answers.stdout) == {
        line.split(",")[0]: line.split(",")[1] for line in lines.stdout.splitlines()[1:]
    }
    assert "2 answers in" in answers.stderr


def test_the_figures_of_evaluate_are_those_of_score(place: Path, tmp_path: Path) -> None:
    answers = ({"text": "word2", "answer_start": 6}, {"text": "word3", "answer_start": 12})
    qas = [{"id": str(n), "question": "word1 ?", "answers": [answer]} for n, answer in enumerate(answers)]
    dev = {"data": [{"title": "t", "paragraphs": [{"context": "word1 word2 word3", "qas": qas}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(dev))
    made = podium(place, "evaluate", "qa", str(tmp_path / "dev.json"), "--output", str(tmp_path / "made"), "--json")
    found = json.loads(made.stdout)
    said = podium(place, "score", str(tmp_path / "dev.json"), str(tmp_path / "made/predictions.json"), "--json")
    assert {name: found[name] for name in ("exact_match", "f1", "total")} == json.loads(said.stdout)
    assert found == json.loads((tmp_path / "made/metrics.json").read_text())
    names = {"metrics.json", "nbest.json", "predictions.json", "report.html", "scores.json"}
    assert {path.name for path in (tmp_path / "made").iterdir()} == names


def test_what_is_there_is_written_over_only_by_force(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    assert podium(place, "predict", "sst2", "sentences.csv", str(out)).returncode == 2
    assert out.read_text() == "mine"
    assert podium(place, "predict", "sst2", "sentences.csv", str(out), "--force").returncode == 0
    assert len(out.read_text().splitlines()) == 2
