"""Corpus, questions, tokenizer and model taken from a Hub over real HTTP equal the same data as local files."""

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.hub_server import HubServer, running_hub
from tests.places import ROOT
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.squad.question_files import qa, squad, write
from tests.tasks.trained_checkout import WORDS, make_checkout

DOCUMENTS = [
    {"title": "Mirn", "text": "Mirn lies on the river Olt.\nIts founder was Ada Venn."},
    {"title": "Sorrel", "text": "Sorrel was founded in 1204. It trades in salt."},
    {"title": "Ünder", "text": "The mines of Ünder gave silver — then none."},
]
CONTEXT = "Mirn lies on the river Olt. Its founder was Ada Venn."
QUESTIONS = {
    "train": [("t1", "Where does Mirn lie?", "the river Olt", 13), ("t2", "Who founded Mirn?", "Ada Venn", 44)],
    "dev": [("d1", "What lies on the Olt?", "Mirn", 0)],
}
STAGES = {
    "corpus": ("tasks.corpus.corpus", "corpus.dataset", "user/towns"),
    "questions": ("tasks.downstream.examples", "data.dataset", "user/asked"),
    "tokenizer": ("tasks.vocabulary.tokenizer", "tokenizer.repository", "user/model"),
    "base_model": ("tasks.pretraining.base_model", "base_model.repository", "user/model"),
}
"""Stage -> its module, the setting that names its repository, and that repository."""
REPOSITORIES = {stage: repository for stage, (_, _, repository) in STAGES.items()}
RUN_STAGES = """
import contextlib, io, json, os, runpy, sys, time, traceback
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # the client's waits between its attempts have no knob
codes = {}
for step in json.loads(sys.argv[1]):
    os.chdir(step["folder"])
    sys.argv = [step["stage"], *step.get("arguments", [])]
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(step["module"], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = -1
            traceback.print_exc()
    codes[step["name"]] = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
print(json.dumps(codes))
"""
"""One process for many stages: importing the libraries takes longer than the stages."""


def squad_parquet(questions: list[tuple[str, str, str, int]]) -> bytes:
    rows = [
        {"id": i, "title": "Mirn", "context": CONTEXT, "question": q, "answers": {"text": [a], "answer_start": [at]}}
        for i, q, a, at in questions
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue())


LINES = "".join(json.dumps(document) + "\n" for document in DOCUMENTS).encode()
DATA = {f"data/{split}-00000.parquet": squad_parquet(questions) for split, questions in QUESTIONS.items()}


def hub_section(stage: str, repository: str) -> dict[str, Any]:
    return {stage: {"source": "hub", STAGES[stage][1].rpartition(".")[2]: repository}}


def make_step(stage: str, folder: Path, name: str = "", **sections: dict[str, Any]) -> dict[str, Any]:
    """A stage in a checkout of parameters only, with other values in some sections; `questions` are an entry's data."""
    data = sections.pop("questions", {})
    write_parameters(folder, values_with({"squad": {"data": {"min_examples": 1, **data}}}, **sections))
    arguments = ["squad"] if stage == "questions" else []
    name = name or f"{stage} {folder.parent.name}"
    return {"name": name, "stage": stage, "module": STAGES[stage][0], "folder": str(folder), "arguments": arguments}


def make_steps(root: Path, **repositories: str) -> list[dict[str, Any]]:
    """Each stage in a folder of its own, from that repository of the Hub."""
    return [make_step(stage, root / stage, **hub_section(stage, name)) for stage, name in repositories.items()]


def run_stages(steps: list[dict[str, Any]], root: Path, endpoint: str, **settings: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(root / "hf-home"), **settings}
    command = [sys.executable, "-c", RUN_STAGES, json.dumps(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@dataclass
class Runs:
    root: Path
    results: dict[str, Any]
    hub: HubServer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Stages that read files, a Hub, what is not on it, and data sets that are an archive, a program, or with one."""
    root = tmp_path_factory.mktemp("sources")
    (root / "corpus.jsonl").write_bytes(LINES)
    for name, questions in QUESTIONS.items():
        asked = [qa(i, question, [(text, at)]) for i, question, text, at in questions]
        write(root / f"{name}.json", squad(*asked, context=CONTEXT, title="Mirn"))
    trained = make_checkout(root / "trained")
    files = {path.name: path.read_bytes() for path in (trained / "data/tokenizer").iterdir()}
    files |= {name: (trained / "models/squad" / name).read_bytes() for name in ("config.json", "model.safetensors")}
    files["README.md"] = b"---\nlicense: mit\nlanguage: [en, de]\n---\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.jsonl", LINES)
        archive.writestr("../../escaped.txt", "out of the folder")
    program = f"open({str(root / 'it-ran')!r}, 'w').close()\n".encode()
    hostile = {
        "packed": {"train.zip": packed.getvalue()},
        "scripted": {"scripted.py": program},
        "both": {"both.py": program, "train.jsonl": LINES},
    }
    here: dict[str, Any] = {
        "corpus": {"source": "files", "path": str(root / "corpus.jsonl")},
        "questions": {f"{name}_path": str(root / f"{name}.json") for name in QUESTIONS} | {"source": "files"},
        "tokenizer": {"source": "file", "path": f"{trained}/data/tokenizer/vocab.txt"},
    }
    there: dict[str, Any] = {"model": {"hidden_size": 16, "intermediate_size": 32}}
    for stage, name in REPOSITORIES.items():
        there |= hub_section(stage, name)
    with running_hub() as hub:
        for name, content in {"towns": {"train.jsonl": LINES}, "asked": DATA, **hostile}.items():
            hub.store.add_files(hub.store.create("dataset", f"user/{name}"), content)
        hub.store.add_files(hub.store.create("model", "user/model"), files)
        steps = [make_step(stage, root / "here", f"{stage} here", **here) for stage in here]
        steps += [make_step(stage, root / "there", f"{stage} there", **there) for stage in REPOSITORIES]
        steps += make_steps(root / "missing", **dict.fromkeys(STAGES, "user/none"))
        steps += [make_step("corpus", root / name, name, **hub_section("corpus", f"user/{name}")) for name in hostile]
        yield Runs(root, run_stages(steps, root, hub.endpoint), hub)


def test_corpus_questions_and_tokenizer_of_the_hub_equal_those_of_files(runs: Runs) -> None:
    errors = {name: result["err"] for name, result in runs.results.items() if "here" in name and result["code"]}
    assert errors == {}
    here, there = (runs.root / place / "data" for place in ("here", "there"))
    corpora = [pq.read_table(data / "corpus/part-00000.parquet").drop(["document_id"]) for data in (here, there)]
    assert corpora[0].to_pylist() == corpora[1].to_pylist()
    assert corpora[1]["text"].to_pylist() == [document["text"] for document in DOCUMENTS]
    for name in ("train", "dev"):
        questions = [pq.read_table(data / f"examples/squad/{name}.parquet") for data in (here, there)]
        assert questions[0].equals(questions[1])
    tokenizers = [{path.name: path.read_bytes() for path in (data / "tokenizer").iterdir()} for data in (here, there)]
    assert tokenizers[0] == tokenizers[1]
    assert len(tokenizers[0]["vocab.txt"].split()) == 5 + len(WORDS)
    paths = {path for _, path, _ in runs.hub.requests}
    assert [path for path in paths if not any(name in path for name in ("user/", "/objects/"))] == []


def test_a_hub_model_is_taken_in_as_its_folder_has_it(runs: Runs) -> None:
    base, model = runs.root / "there/models/base", runs.root / "trained/models/squad"
    ours, theirs = load_file(base / "model.safetensors"), load_file(model / "model.safetensors")
    assert {name: weights.tobytes() for name, weights in ours.items()} == {
        name: weights.tobytes() for name, weights in theirs.items()
    }
    record = json.loads((base / "base_model.json").read_text(encoding="utf-8"))
    commit = runs.hub.store.repositories["model", "user/model"].history()[-1].oid
    assert [record[name] for name in ("commit", "source", "repository")] == [commit, "hub", "user/model"]
    assert record["origin"] == {"license": "mit", "language": ["en", "de"], "name": "user/model"}


@pytest.fixture(scope="module")
def down(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Each stage with no server at the endpoint."""
    root = tmp_path_factory.mktemp("unreachable")
    steps = make_steps(root / "down", **dict.fromkeys(STAGES, "user/none"))
    return root, run_stages(steps, root, "http://127.0.0.1:1")


@pytest.mark.parametrize("case", ["down", "missing"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_hub_without_it_is_one_error_and_nothing_half_written(runs: Runs, down: Any, stage: str, case: str) -> None:
    root, results = down if case == "down" else (runs.root, runs.results)
    result = results[f"{stage} {case}"]
    assert result["code"] == 1
    assert result["err"].count("error:") == 1
    assert STAGES[stage][1] in result["err"]
    assert "Traceback" not in result["err"]
    left = [path for path in (root / case / stage).rglob("*") if path.name not in ("params.yaml", "dvc.yaml")]
    assert [path for path in left if path.is_file() or ".partial" in path.name] == []


@pytest.mark.parametrize(("name", "words"), [("packed", "archives (train.zip)"), ("scripted", "corpus.dataset")])
def test_an_archive_and_a_program_of_the_hub_are_refused(runs: Runs, name: str, words: str) -> None:
    assert runs.results[name]["code"] == 1
    assert words in runs.results[name]["err"]
    assert "Traceback" not in runs.results[name]["err"]
    assert not list(runs.root.rglob("escaped.txt"))
    assert not (runs.root / "it-ran").exists(), "no program of a data set is run"


@pytest.mark.parametrize("reads", [None, "other/*, user/to*"])
def test_a_sent_run_reads_what_the_worker_names_with_its_token_and_nothing_else(
    tmp_path: Path, reads: str | None
) -> None:
    """All repositories are private."""
    vocabulary = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]).encode()
    settings = {"HF_TOKEN": "hf_of_the_worker", "PREFECT__FLOW_RUN_ID": "17"}
    settings |= {} if reads is None else {"PODIUM_HUB_READS": reads}
    with running_hub() as hub:
        hub.add_user("hf_of_the_worker")
        model = {"config.json": b"{}", "vocab.txt": vocabulary}
        contents = {("dataset", "towns"): {"train.jsonl": LINES}, ("dataset", "asked"): DATA, ("model", "model"): model}
        for (kind, name), content in contents.items():
            hub.store.add_files(hub.store.create(kind, f"user/{name}", private=True), content)
        results = run_stages(make_steps(tmp_path / "sent", **REPOSITORIES), tmp_path, hub.endpoint, **settings)
    assert hub.tokens != []
    readable = "user/towns" if reads else "nothing"
    assert [path for path, token in hub.tokens if token is not None and readable not in path] == []
    for stage in STAGES:
        result = results[f"{stage} sent"]
        assert result["code"] == (0 if reads and stage == "corpus" else 1), result["err"]
        assert "Traceback" not in result["err"]
        assert result["code"] == 0 or "PODIUM_HUB_READS of the worker" in result["err"]
