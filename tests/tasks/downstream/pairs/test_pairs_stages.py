"""Pairs from a table to a published model, whose embeddings in transformers and onnxruntime are those that were scored;
predict, evaluate and search with it."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flows.cli import cli
from tasks.downstream.export.model_export import export_model
from tasks.downstream.gate import gate
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.onnx_answers import open_session, run_session
from tasks.pretraining import base_model
from tasks.release import publish
from tasks.stage.errors import InputError
from tasks.vocabulary import tokenizer
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import SIZE, read_json, run_entry, run_jobs_here, run_stage
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.trained_checkout import write_lock

NAME = "search"
PERMITTED = {"max_common_share": 1.0, "missing_texts": "keep"}
"""The generated texts are few, and one of the words is nan."""


def write_pairs(path, count, seed):
    """Questions of one or two words of the second half, which stand for words of the first: no word is in both."""
    random, pairs, half = np.random.default_rng(seed), [], len(WORDS) // 2
    for _ in range(count):
        own = random.choice(half, size=int(random.integers(1, 3)), replace=False)
        others = " ".join(WORDS[half + n] for n in own)
        pairs.append((others, " ".join(WORDS[n] for n in [*own, *own])))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("question", "passage"), *pairs])
    return pairs


def make_checkout(folder, **sections):
    """params.yaml with an entry that starts from a base model, its plan, and a dvc.lock as if all had run."""
    data, base = folder / "data-in", folder / "base-in"
    data.mkdir(parents=True)
    write_pairs(data / "train.csv", 400, seed=0)
    write_pairs(data / "dev.csv", 40, seed=1)
    write_head_model(base, "masked_lm", (), WORDS)
    entry = {
        "kind": "pairs",
        "data": {"train_path": str(data / "train.csv"), "dev_path": str(data / "dev.csv"), **PERMITTED},
        "rows": {"row_length": 32, **sections.pop("rows", {})},
        "finetune": {"epochs": 8.0, "learning_rate": 1e-2, "global_batch_size": 40, "checkpoint_every_updates": 0},
        **sections,
    }
    values = values_with(
        {"squad": None, NAME: entry},
        pretrain={"enabled": False},
        model={**SIZE, "max_positions": 64},
        base_model={"source": "folder", "path": str(base)},
        tokenizer={"source": "file", "path": str(base)},
        device={"runtime": "cpu", "precision": "fp32"},
    )
    write_lock(folder, write_parameters(folder, values))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = make_checkout(tmp_path_factory.mktemp("pairs") / "checkout")
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        patch.chdir(folder)
        run_stage(tokenizer)
        run_stage(base_model)
        run_entry(folder, NAME, patch)
        run_stage(publish, NAME)
    return folder


def test_a_search_is_learnt_and_both_baselines_are_beaten(finished):
    metrics = read_json(finished / f"metrics/{NAME}.json")
    before, words = metrics["baselines"]
    assert (before["name"], words["name"]) == ("the model before training", "BM25")
    assert metrics["recall_1_low"] > metrics["constant_score"] == max(before["recall_1"], words["recall_1"])
    verdict = read_json(finished / f"metrics/{NAME}-gate.json")
    assert verdict["accepted"], verdict["reasons"]
    assert [one["name"] for one in verdict["checks"]][0] == "beats_constant_answer"
    assert {part["by"] for part in metrics["slices"]} == {"length of the anchor", "length of the positive"}
    trained = read_json(finished / f"metrics/{NAME}-finetune.json")
    assert (trained["steps"], trained["equal_texts"] > 0) == (80, True)


def test_the_gate_reads_the_answers_before_training(finished, monkeypatch):
    monkeypatch.chdir(finished)
    path = finished / f"evaluation/{NAME}/before.json"
    text = path.read_text()
    path.write_text(json.dumps({"dev": read_json(finished / f"evaluation/{NAME}/predictions.json")["dev"]}))
    with pytest.raises(InputError, match="constant_score=5.0, computed "):
        run_stage(gate, f"gate@{NAME}")
    path.write_text('{"dev": [[0]]}')
    with pytest.raises(InputError, match="has 1 answers for dev, which has 40"):
        run_stage(gate, f"gate@{NAME}")
    path.write_text(text)


def embed(folder, texts):
    from transformers import AutoModel, AutoTokenizer

    encode, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = encode(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        tokens, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1).numpy()


def test_the_embeddings_are_those_of_transformers_and_onnxruntime(finished, tmp_path):
    released = finished / "published" / NAME
    dev = pq.read_table(finished / f"data/examples/{NAME}/dev.parquet").to_pylist()
    texts = [text for one in dev for text in (one["anchor"], one["positive"])]
    with pa.memory_map(str(finished / f"predictions/{NAME}/dev.arrow")) as source:
        own = np.array(pa.ipc.open_file(source).read_all()["embedding"].to_pylist())
    theirs = embed(released, texts)
    np.testing.assert_allclose(own, theirs, atol=1e-6)
    modules = [one["type"].rpartition(".")[2] for one in read_json(released / "modules.json")]
    assert modules == ["Transformer", "Pooling", "Normalize"]
    assert read_json(released / "1_Pooling/config.json")["pooling_mode_mean_tokens"]
    assert read_json(released / "sentence_bert_config.json")["max_seq_length"] == 32
    card = (released / "README.md").read_text(encoding="utf-8")
    assert "library_name: sentence-transformers" in card
    assert 'SentenceTransformer(".")' in card
    model = find_model(str(released))
    assert export_model(model, tmp_path / "onnx", ["onnx", "int8"])["transformers_difference"] < 1e-5
    session = open_session(tmp_path / "onnx/onnx/model.onnx")
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(released)(texts[0])["input_ids"]
    [found] = run_session(session, np.array([ids]), np.zeros((1, len(ids)), np.int64))
    np.testing.assert_allclose(found[0], own[0], atol=1e-5)


@pytest.fixture
def _here(jobs_here, monkeypatch, finished, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(finished / "published" / NAME)


def call(*words):
    cli.main(list(words), "podium", standalone_mode=False, obj=" ".join(words))


@pytest.mark.usefixtures("_here")
def test_embeddings_are_written_and_searched(tmp_path, finished, capsys):
    dev = pq.read_table(finished / f"data/examples/{NAME}/dev.parquet").to_pylist()
    lines = list(dict.fromkeys(one["positive"] for one in dev))
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(lines) + "\n")
    for name in ("out.parquet", "out.npy"):
        call("predict", "model", "texts.csv", name, "--runtime", "cpu")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "embedding"]
    question, *vectors = embed(finished / "published" / NAME, [dev[0]["anchor"], *lines])
    for found in (np.array(table["embedding"].to_pylist()), np.load(tmp_path / "out.npy")):
        np.testing.assert_allclose(found, vectors, atol=1e-6)
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    capsys.readouterr()
    call("search", "model", "lines.txt", dev[0]["anchor"], "--top", "2", "--json", "--runtime", "cpu")
    first, second = json.loads(capsys.readouterr().out)
    cosines = np.array(vectors) @ question
    assert first["text"] == lines[int(cosines.argmax())]
    assert (first["similarity"], second["similarity"]) == pytest.approx(sorted(cosines, reverse=True)[:2], abs=1e-5)


@pytest.mark.usefixtures("_here")
def test_a_file_of_pairs_is_evaluated(tmp_path, finished):
    dev, words = str(finished / "data-in/dev.csv"), ("--missing-texts", "keep")
    call("evaluate", "model", dev, *words, "--output", "scores", "--runtime", "cpu")
    found, own = read_json(tmp_path / "scores/metrics.json"), read_json(finished / f"metrics/{NAME}.json")
    assert [found[name] for name in ("recall_1", "ndcg_10")] == [own[name] for name in ("recall_1", "ndcg_10")]
    assert [one["name"] for one in found["baselines"]] == ["BM25"]
