"""Corpus, questions, tokenizer and model taken from a Hub over real HTTP equal the same data as local files."""

import io
import json
import os
import socket
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
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.squad.question_files import qa, squad, write
from tests.tasks.trained_checkout import PROJECT, WORDS, make_checkout

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
MODULES = {
    "corpus": "tasks.corpus.corpus",
    "questions": "tasks.downstream.examples",
    "tokenizer": "tasks.vocabulary.tokenizer",
    "base_model": "tasks.pretraining.base_model",
}
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


def folder_with(root: Path, **sections: dict[str, Any]) -> Path:
    """A checkout of parameters only, with other values in some sections; `questions` are the data of the entry."""
    data = sections.pop("questions", {})
    write_parameters(root, values_with({"squad": {"data": {"min_examples": 1, **data}}}, **sections))
    return root


@dataclass
class Runs:
    root: Path
    results: dict[str, Any]
    hub: HubServer


def make_step(name: str, stage: str, folder: Path) -> dict[str, Any]:
    arguments = ["squad"] if stage == "questions" else []
    return {"name": name, "stage": stage, "module": MODULES[stage], "folder": str(folder), "arguments": arguments}


def run_stages(steps: list[dict[str, Any]], root: Path, endpoint: str, **settings: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "PYTHONPATH": str(PROJECT),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(root / "hf-home"),
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    command = [sys.executable, "-c", RUN_STAGES, json.dumps(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root = tmp_path_factory.mktemp("sources")
    lines = "".join(json.dumps(document) + "\n" for document in DOCUMENTS)
    (root / "corpus.jsonl").write_text(lines, encoding="utf-8")
    for name, questions in QUESTIONS.items():
        asked = [qa(i, question, [(text, at)]) for i, question, text, at in questions]
        write(root / f"{name}.json", squad(*asked, context=CONTEXT, title="Mirn"))
    trained = make_checkout(root / "trained")
    with running_hub() as hub:
        text = hub.store.create("dataset", "user/towns")
        hub.store.add_files(text, {"train.jsonl": lines.encode()})
        asked = hub.store.create("dataset", "user/asked")
        data = {"data/train-00000.parquet": QUESTIONS["train"], "data/validation-00000.parquet": QUESTIONS["dev"]}
        hub.store.add_files(asked, {path: squad_parquet(questions) for path, questions in data.items()})
        model = hub.store.create("model", "user/model")
        files = {path.name: path.read_bytes() for path in (trained / "data/tokenizer").iterdir()}
        files |= {name: (trained / "models/squad" / name).read_bytes() for name in ("config.json", "model.safetensors")}
        files["README.md"] = b"---\nlicense: mit\nlanguage: [en, de]\n---\n"
        hub.store.add_files(model, files)
        paths = {"train_path": str(root / "train.json"), "dev_path": str(root / "dev.json")}
        here = folder_with(
            root / "here",
            corpus={"source": "files", "path": str(root / "corpus.jsonl")},
            questions={"source": "files", **paths},
            tokenizer={"source": "file", "path": f"{trained}/data/tokenizer/vocab.txt"},
        )
        there = folder_with(
            root / "there",
            corpus={"source": "hub", "dataset": "user/towns"},
            questions={"source": "hub", "dataset": "user/asked"},
            tokenizer={"source": "hub", "repository": "user/model"},
            base_model={"source": "hub", "repository": "user/model"},
            model={"hidden_size": 16, "intermediate_size": 32},
        )
        steps = [
            make_step(f"{stage} {folder.name}", stage, folder)
            for folder in (here, there)
            for stage in ("corpus", "questions", "tokenizer", "base_model")
            if (folder, stage) != (here, "base_model")
        ]
        yield Runs(root, run_stages(steps, root, hub.endpoint), hub)


def test_corpus_questions_and_tokenizer_of_the_hub_equal_those_of_files(runs: Runs) -> None:
    assert {name: result["err"] for name, result in runs.results.items() if result["code"]} == {}
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
    assert ours.keys() == theirs.keys()
    assert all(x.tobytes() == theirs[name].tobytes() for name, x in ours.items())
    record = json.loads((base / "base_model.json").read_text(encoding="utf-8"))
    commit = runs.hub.store.find("model", "user/model").history()[-1].oid
    assert [record[name] for name in ("commit", "source", "repository")] == [commit, "hub", "user/model"]
    assert record["origin"] == {"license": "mit", "language": ["en", "de"], "name": "user/model"}


BAD = {
    "corpus": ("corpus.dataset", {"corpus": {"source": "hub", "dataset": "user/towns"}}),
    "questions": ("data.dataset", {"questions": {"source": "hub", "dataset": "user/asked"}}),
    "tokenizer": ("tokenizer.repository", {"tokenizer": {"source": "hub", "repository": "user/model"}}),
    "base_model": ("base_model.repository", {"base_model": {"source": "hub", "repository": "user/model"}}),
}


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each stage with no server at the endpoint, and with a server that knows no such repository."""
    root = tmp_path_factory.mktemp("failures")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        unreachable = f"http://127.0.0.1:{unused.getsockname()[1]}"
    results: dict[str, Any] = {"root": root}
    with running_hub() as hub:
        for case, endpoint in (("down", unreachable), ("missing", hub.endpoint)):
            steps = [
                make_step(f"{stage} {case}", stage, folder_with(root / case / stage, **sections))
                for stage, (_, sections) in BAD.items()
            ]
            results |= run_stages(steps, root / case, endpoint)
    return results


@pytest.mark.parametrize("case", ["down", "missing"])
@pytest.mark.parametrize("stage", BAD)
def test_a_hub_without_it_is_one_error_and_nothing_half_written(
    failures: dict[str, Any], stage: str, case: str
) -> None:
    result = failures[f"{stage} {case}"]
    assert result["code"] == 1
    assert result["err"].count("error:") == 1
    assert BAD[stage][0] in result["err"]
    assert "Traceback" not in result["err"]
    left = [
        path for path in (failures["root"] / case / stage).rglob("*") if path.name not in ("params.yaml", "dvc.yaml")
    ]
    assert [path for path in left if path.is_file() or ".partial" in path.name] == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The stage corpus on data sets that are an archive, a program, or both a program and data."""
    root = tmp_path_factory.mktemp("hostile")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.jsonl", json.dumps(DOCUMENTS[0]) + "\n")
        archive.writestr("../../escaped.txt", "out of the folder")
    program = f"open({str(root / 'it-ran')!r}, 'w').close()\n".encode()
    data_sets = {
        "packed": {"train.zip": packed.getvalue()},
        "scripted": {"scripted.py": program},
        "both": {"both.py": program, "train.jsonl": (json.dumps(DOCUMENTS[0]) + "\n").encode()},
    }
    with running_hub() as hub:
        for name, files in data_sets.items():
            hub.store.add_files(hub.store.create("dataset", f"user/{name}"), files)
        steps = [
            make_step(name, "corpus", folder_with(root / name, corpus={"source": "hub", "dataset": f"user/{name}"}))
            for name in data_sets
        ]
        return {"root": root, **run_stages(steps, root, hub.endpoint)}


@pytest.mark.parametrize(("name", "said"), [("packed", "archives (train.zip)"), ("scripted", "corpus.dataset")])
def test_an_archive_and_a_program_of_the_hub_are_refused(hostile: dict[str, Any], name: str, said: str) -> None:
    assert hostile[name]["code"] == 1
    assert said in hostile[name]["err"]
    assert "Traceback" not in hostile[name]["err"]
    assert not list(hostile["root"].rglob("escaped.txt"))
    assert not (hostile["root"] / "it-ran").exists(), "no program of a data set is run"


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results, and tokens that the Hub saw, without a setting of the worker and with one; all data are private."""
    root = tmp_path_factory.mktemp("sent")
    lines = "".join(json.dumps(document) + "\n" for document in DOCUMENTS).encode()
    cases = {
        "sent": {"PREFECT__FLOW_RUN_ID": "17"},
        "named": {"PREFECT__FLOW_RUN_ID": "17", "PODIUM_HUB_READS": "other/*, user/to*"},
    }
    found = {}
    with running_hub() as hub:
        hub.add_user("hf_of_the_worker")
        hub.store.add_files(hub.store.create("dataset", "user/towns", private=True), {"train.jsonl": lines})
        asked = {f"{split}.parquet": squad_parquet(questions) for split, questions in QUESTIONS.items()}
        hub.store.add_files(hub.store.create("dataset", "user/asked", private=True), asked)
        vocabulary = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]).encode()
        model = {"config.json": b"{}", "vocab.txt": vocabulary}
        hub.store.add_files(hub.store.create("model", "user/model", private=True), model)
        for case, settings in cases.items():
            steps = [
                make_step(stage, stage, folder_with(root / case / stage, **sections))
                for stage, (_, sections) in BAD.items()
            ]
            before = len(hub.tokens)
            results = run_stages(steps, root / case, hub.endpoint, HF_TOKEN="hf_of_the_worker", **settings)
            found[case] = results, hub.tokens[before:]
    return found


@pytest.mark.parametrize("stage", BAD)
def test_a_sent_run_reads_the_hub_without_the_workers_token(sent: dict[str, Any], stage: str) -> None:
    results, tokens = sent["sent"]
    assert tokens != []
    assert [path for path, token in tokens if token is not None] == []
    assert results[stage]["code"] == 1
    assert "PODIUM_HUB_READS of the worker" in results[stage]["err"]
    assert "Traceback" not in results[stage]["err"]


def test_a_sent_run_reads_what_the_worker_names_with_its_token_and_nothing_else(sent: dict[str, Any]) -> None:
    results, tokens = sent["named"]
    codes = {name: result["code"] for name, result in results.items()}
    assert codes == {"corpus": 0, "questions": 1, "tokenizer": 1, "base_model": 1}, results["corpus"]["err"]
    assert [path for path, token in tokens if token is not None and "user/towns" not in path] == []
