"""The commands `podium evaluate` and `podium predict`: what they refuse and leave behind, and standard streams."""

import io
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile

import click
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from flows.cli import cli
from flows.runs import environment
from tasks.stage.errors import PodiumError
from tests.places import ROOT
from tests.tasks.downstream.inference.applied_models import GOOD
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import WORDS

BAD = {
    "questions.json": '{"data": [{"paragraphs": [{"qas": [{"id": "1", "answers": [{"text": "a"}]}]}]}]}',
    "answers.json": '{"1": "a"}',
    "odds.json": '{"1": 0.5}',
    "blank.jsonl": '{"question": "a", "context": " "}\n{"question": "", "context": "b"}\n',
    "twice.jsonl": '{"id": 1, "question": "a", "context": "b"}\n' * 2,
    "text.txt": "word1 word2\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models of three tasks and of none, good files and bad ones; it is not in a clone."""
    folder = tmp_path_factory.mktemp("place")
    for name, head, labels in (
        ("qa", "question_answering", ()),
        ("sst2", "sequence_classification", ("negative", "positive")),
        ("colours", "sequence_classification", ("blue", "red")),
        ("pairs", "sequence_classification", ("not_equivalent", "equivalent")),
        ("odd", "token_classification", ("red", "green", "blue", "grey")),
        ("names", "token_classification", ("O", "B-red", "I-red")),
    ):
        write_head_model(folder / name, head, labels, WORDS)
    for name, text in (GOOD | BAD).items():
        (folder / name).write_text(text)
    (folder / "link.json").symlink_to("answers.json")
    return folder


REFUSED = {
    "predict nothing/at/all questions.csv": (1, "nothing/at/all not found"),
    "predict odd sentences.csv": (1, "has the classes red, green, blue, grey"),
    "predict sst2 rows.json rows.json --force": (2, "rows.json is an input of this"),
    "evaluate answers.json questions.json --output answers.json": (2, "answers.json is an input"),
    "evaluate answers.json questions.json --output link.json": (2, "link.json is an input of this"),
    "evaluate answers.json questions.json --na-probs odds.json --output odds.json": (2, "odds.json"),
    "compare answers.json odds.json --changed odds.json": (2, "odds.json is an input of this"),
    "compare answers.json odds.json --output new.json --changed new.json": (2, "--output and --changed name the same"),
    "evaluate colours semicolon.csv --column text=Sentence": (1, "no label is a class of the model"),
    "predict qa blank.jsonl": (1, "context is empty: line 1\n  question is empty: line 2"),
    "predict qa twice.jsonl out.json": (1, "1 duplicate id(s)"),
    "predict sst2": (2, "pass either IN (a file, or - for standard input) or --text TEXT"),
    "predict sst2 --text ' '": (2, "the text is empty"),
    "predict qa --text q --context a --context-file text.txt": (2, "--context"),
    "predict qa --text q --context a --n-best -1": (2, "--n-best"),
    "predict sst2 --text a --text-pair b": (2, "this model reads one text: omit --text-pair"),
    "predict pairs --text a": (2, "reads two texts: pass --text and --text-pair, or a table"),
    "predict qa --text who?": (2, "this model answers questions: add --context TEXT, or a table of"),
    "predict colours sentences.csv --column text=other": (1, "or --plain if each line is a text"),
    "predict sst2 sentences.csv out.json": (2, "cannot hold predictions for examples. Use .jsonl"),
    "predict sst2 sentences.csv out.npy": (2, "holds embeddings, which this model does not have"),
    "predict sst2 sentences.csv --n-best 2": (2, "--n-best 2 is not supported"),
    "predict sst2 sentences.csv --task qnli": (2, "--task qnli does not fit; valid: classif"),
    "predict qa questions.csv out.txt": (2, "OUT is out.txt, but it must end in"),
    "predict qa questions.csv no/out.csv": (1, "no not found. Create the folder"),
    "predict qa questions.csv labelled.tsv": (2, "already exists: name another"),
    "predict qa questions.csv --row-length 65": (2, "65 tokens are too long"),
    "predict qa questions.csv --precision fp16 --runtime cpu": (1, "the cpu runtime has no fp16"),
    "evaluate sst2 labelled.tsv --output qa": (1, "qa already exists"),
    "evaluate qa questions.csv": (1, "or --column answer_text=NAME and --column answer_start=NAME"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_one_clear_error_and_leaves_nothing(place, tmp_path, words, monkeypatch, capsys):
    code, message = REFUSED[words]
    before = sorted(place.rglob("*"))
    monkeypatch.chdir(place)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "prepare_environment", lambda: None)
    with pytest.raises((PodiumError, click.ClickException)) as refused:
        cli.main(shlex.split(words), prog_name="podium", standalone_mode=False)
    assert refused.value.exit_code == code
    text = getattr(refused.value, "format_message", lambda: str(refused.value))()
    assert message in text
    assert "(log:" not in text, "a log that is gone"
    assert capsys.readouterr().out == ""
    assert sorted(place.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("largest", "words"),
    [(100, "predict sst2 sentences.csv out.csv"), (2500, "evaluate sst2 labelled.tsv --output made")],
)
def test_a_full_disk_leaves_nothing(place, tmp_path, words, largest):
    """No file may grow beyond `largest` bytes, which is how a disk looks that is full."""
    before = sorted(place.rglob("*"))
    # Python would leave half of what it compiles, and others would stumble over it.
    variables = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "flows", *words.split()]
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest)), "timeout": 120}
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=place, env={**os.environ, **variables}, **streams, **limit)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(place.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_standard_streams_hold_records_and_nothing_else(call, tmp_path):
    lines, _ = call("predict", "qa", "-", "--format", "csv", given=GOOD["questions.csv"].encode())
    header, *records = lines.splitlines()
    assert header == "id,answer,score,probability,start,end"
    assert [line.split(",")[0] for line in records] == ["line 2", "line 3"]
    answers, errors = call("predict", "qa", "questions.csv", "--format", "json")
    assert json.loads(answers) == {line.split(",")[0]: line.split(",")[1] for line in records}
    assert "2 answers in" in errors
    for model, name, count in (("colours", "unknown.csv", "2 labels"), ("names", "tagged.csv", "1 label")):
        _, errors = call("evaluate", model, name, "--output", str(tmp_path / model))
        assert f"{count} unknown to the model" in errors
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(click.ClickException, match="already exists"):
        call("predict", "sst2", "sentences.csv", str(out))
    assert out.read_text() == "mine"
    call("predict", "sst2", "sentences.csv", str(out), "--force")
    assert len(out.read_text().splitlines()) == 2


@pytest.fixture
def call(place, jobs_here, monkeypatch, capsys):
    """A command in `place` and in this process: what it writes to standard output and to standard error."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(environment, "prepare_environment", lambda: None)

    def run(*words, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        cli.main(list(words), prog_name="podium", standalone_mode=False)
        errors = capsys.readouterr()
        return errors.out, errors.err

    return run


def test_a_text_gets_a_readable_answer_or_json(call):
    out, errors = call("predict", "sst2", "--text", "word1 word2")
    assert re.fullmatch(r"(positive|negative) \d+\.\d%\n", out)
    assert "layout" not in errors
    record = json.loads(call("predict", "sst2", "--text", "word1 word2", "--json")[0])
    assert f"{record['label']} {record['score']:.1%}\n" == out
    assert call("predict", "pairs", "--text", "word1", "--text-pair", "word2")[0].split()[0].endswith("equivalent")
    record = json.loads(call("predict", "names", "--text", "word1, word2-word3 word4.", "--json")[0])
    assert record["tokens"] == ["word1", ",", "word2-word3", "word4", "."]
    shown = [f"{entity['text']} ({entity['type']} {entity['score']:.1%})" for entity in record["entities"]]
    text = call("predict", "names", "--text", "word1, word2-word3 word4.")[0]
    assert text == (", ".join(shown) or "no entity") + "\n"
    answer = call("predict", "qa", "--text", "word1 ?", "--text-pair", "word2 word3")[0]
    assert re.fullmatch(r"word.* \(\d+\.\d%\)\n", answer)
    with pytest.raises(PodiumError, match="not for questions") as refused:
        call("predict", "sst2", "--text", "what?", "--context", "word1's word2")
    command = str(refused.value).partition("Run podium ")[2]
    assert re.match("(positive|negative) ", call(*shlex.split(command))[0])


PLAIN_TEXT = "word1 word2\n\n  word3, word4\n"
TEXTS, TAGGED = ["word1 word2", "word3, word4"], [["word1", "word2"], ["word3"]]
STREAMS = [
    ("sst2", "text", PLAIN_TEXT.encode(), "plain text, one text a line", TEXTS),
    ("sst2", "text", b'{"sentence": "word1 word2"}\n{"sentence": "word3, word4"}\n', "JSON lines", TEXTS),
    ("sst2", "text", b'id,Sentence\n1,word1 word2\n2,"word3, word4"\n', "a table", TEXTS),
    ("sst2", "text", b"\xef\xbb\xbfsentence\tlabel\nword1 word2\tx\nword3, word4\ty\n", "a table", TEXTS),
    ("names", "tokens", b"So did I\n", "", [["So", "did", "I"]]),
    ("names", "tokens", b"word1 NN O\nword2 NN B-red\n\nword3 NN O\n", "", TAGGED),
]


@pytest.mark.parametrize(("model", "key", "given", "form", "expected"), STREAMS)
def test_standard_input_is_plain_text_or_a_table(call, model, key, given, form, expected):
    out, errors = call("predict", model, "-", "--with-text", given=given)
    assert f"standard input is read as {form}" in errors
    assert [json.loads(line)[key] for line in out.splitlines()] == expected


def test_a_table_of_other_columns_is_no_plain_text(call, tmp_path):
    given, table = b"phrase,mood\nword1,good\nword2,bad\n", tmp_path / "table.txt"
    table.write_bytes(given)
    for source, message in (("-", "its columns are phrase, mood"), (str(table), "looks like a table. .*--plain")):
        with pytest.raises(PodiumError, match=message):
            call("predict", "sst2", source, given=given)
        assert len(call("predict", "sst2", source, "--plain", given=given)[0].splitlines()) == 3
    out, _ = call("predict", "colours", "-", "--column", "text=phrase", "--format", "text", given=given[:19])
    assert re.fullmatch(r"(blue|red) [\d.]+%   word1\n", out)


def test_a_text_file_has_one_text_a_line(call, tmp_path):
    texts, outs = tmp_path / "texts.txt", [tmp_path / f"out.{kind}" for kind in ("csv", "parquet")]
    texts.write_text(PLAIN_TEXT)
    for out in outs:
        call("predict", "sst2", str(texts), str(out), "--with-text")
    for table in (pyarrow.csv.read_csv(outs[0]), pq.read_table(outs[1])):
        assert table.column_names == ["id", "text", "label", "score", "scores"]
        assert table["text"].to_pylist() == ["word1 word2", "word3, word4"]
    assert "text" not in call("predict", "sst2", str(texts))[0]
    out, _ = call("predict", "pairs", "-", "--with-text", given=b"sentence1,sentence2\nword1,word2\n")
    assert list(json.loads(out).items())[1:3] == [("text", "word1"), ("text_pair", "word2")]
    asked, _ = call("predict", "qa", "questions.csv", "--with-text")
    assert [json.loads(line)["question"] for line in asked.splitlines()] == ["word1 ?", "word4 ?"]
