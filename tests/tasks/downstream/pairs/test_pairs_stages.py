"""Pairs from a table to a published model, whose embeddings in transformers and onnxruntime are those that were scored;
predict, evaluate and search with it."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flows.cli import cli
from ipu_model.core.files import read_json
from tasks.downstream.export.model_export import export_model
from tasks.downstream.gate import gate
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.onnx_answers import open_session, run_session
from tasks.pretraining import base_model
from tasks.release import publish
from tasks.stage.errors import InputError
from tasks.vocabulary import tokenizer
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.generated import write_csv
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import SIZE, run_entry, run_jobs_here, run_stage
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.trained_checkout import write_lock

NAME = "search"


def write_pairs(path, count, seed):
    """Questions of one or two words of the second half, which stand for words of the first: no word is in both."""
    random, pairs, half = np.random.default_rng(seed), [], len(WORDS) // 2
    for _ in range(count):
        numbers = random.choice(half, size=int(random.integers(1, 3)), replace=False)
        pairs.append((" ".join(WORDS[half + n] for n in numbers), " ".join(WORDS[n] for n in [*numbers, *numbers])))
    write_csv(path, ("question", "passage"), pairs)
    return str(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkout whose entry starts from a base model, up to the release."""
    folder = tmp_path_factory.mktemp("pairs") / "checkout"
    (folder / "data-in").mkdir(parents=True)
    base = write_head_model(folder / "base-in", "masked_lm", (), WORDS)
    data = {"train_path": write_pairs(folder / "data-in/train.csv", 400, seed=0)}
    data["dev_path"] = write_pairs(folder / "data-in/dev.csv", 40, seed=1)
    entry = {
        "kind": "pairs",
        # The generated texts are few, and one of the words is nan.
        "data": {**data, "max_common_share": 1.0, "missing_texts": "keep"},
        "rows": {"row_length": 32},
        "finetune": {"epochs": 8.0, "learning_rate": 1e-2, "global_batch_size": 40, "checkpoint_every_updates": 0},
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
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        patch.chdir(folder)
        run_stage(tokenizer)
        run_stage(base_model)
        run_entry(folder, NAME, patch)
        run_stage(publish, NAME)
    return folder


def test_a_search_is_learnt_and_both_baselines_are_beaten(finished, monkeypatch):
    metrics = read_json(finished / f"metrics/{NAME}.json")
    before, words = metrics["baselines"]
    assert (before["name"], words["name"]) == ("the model before training", "BM25")
    assert metrics["recall_1_low"] > metrics["constant_score"] == max(before["recall_1"], words["recall_1"])
    verdict = read_json(finished / f"metrics/{NAME}-gate.json")
    assert verdict["accepted"], verdict["reasons"]
    assert verdict["checks"][0]["name"] == "beats_constant_answer"
    assert {part["by"] for part in metrics["slices"]} == {"length of the anchor", "length of the positive"}
    trained = read_json(finished / f"metrics/{NAME}-finetune.json")
    assert (trained["steps"], trained["equal_texts"] > 0) == (80, True)
    # The gate reads the answers before training.
    monkeypatch.chdir(finished)
    path = finished / f"evaluation/{NAME}/before.json"
    text, predictions = path.read_text(), (path.parent / "predictions.json").read_text()
    for answers, message in (
        (json.dumps({"dev": json.loads(predictions)["dev"]}), "constant_score=5.0, computed "),
        ('{"dev": [[0]]}', "has 1 answers for dev, which has 40"),
    ):
        path.write_text(answers)
        with pytest.raises(InputError, match=message):
            run_stage(gate, f"gate@{NAME}")
    path.write_text(text)


def embed(folder, texts):
    from transformers import AutoModel, AutoTokenizer

    encode, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = encode(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    with torch.no_grad():
        tokens, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1).numpy()


def dev_pairs(finished):
    return pq.read_table(finished / f"data/examples/{NAME}/dev.parquet").to_pylist()


def test_the_embeddings_are_those_of_transformers_and_onnxruntime(finished, tmp_path):
    released = finished / "published" / NAME
    texts = [text for pair in dev_pairs(finished) for text in (pair["anchor"], pair["positive"])]
    table = pa.ipc.open_file((finished / f"predictions/{NAME}/dev.arrow").read_bytes()).read_all()
    embeddings = np.array(table["embedding"].to_pylist())
    np.testing.assert_allclose(embeddings, embed(released, texts), atol=1e-6)
    modules = [module["type"].rpartition(".")[2] for module in read_json(released / "modules.json")]
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
    [exported] = run_session(session, np.array([ids]), np.zeros((1, len(ids)), np.int64))
    np.testing.assert_allclose(exported[0], embeddings[0], atol=1e-5)


@pytest.fixture
def call(jobs_here, monkeypatch, finished, tmp_path):
    """A command in a folder with the released model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(finished / "published" / NAME)
    return lambda *words: cli.main([*words, "--runtime", "cpu"], "podium", standalone_mode=False, obj=" ".join(words))


def test_embeddings_are_written_and_searched(call, tmp_path, finished, capsys):
    dev = dev_pairs(finished)
    lines = list(dict.fromkeys(pair["positive"] for pair in dev))
    (tmp_path / "texts.csv").write_text("text\n" + "\n".join(lines) + "\n")
    for name in ("out.parquet", "out.npy"):
        call("predict", "model", "texts.csv", name)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "embedding"]
    question, *vectors = embed(finished / "published" / NAME, [dev[0]["anchor"], *lines])
    for embeddings in (np.array(table["embedding"].to_pylist()), np.load(tmp_path / "out.npy")):
        np.testing.assert_allclose(embeddings, vectors, atol=1e-6)
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    capsys.readouterr()
    call("search", "model", "lines.txt", dev[0]["anchor"], "--top", "2", "--json")
    first, second = json.loads(capsys.readouterr().out)
    cosines = np.array(vectors) @ question
    assert first["text"] == lines[int(cosines.argmax())]
    assert (first["similarity"], second["similarity"]) == pytest.approx(sorted(cosines, reverse=True)[:2], abs=1e-5)


def test_a_file_of_pairs_is_evaluated(call, tmp_path, finished):
    call("evaluate", "model", str(finished / "data-in/dev.csv"), "--missing-texts", "keep", "--output", "scores")
    again, metrics = read_json(tmp_path / "scores/metrics.json"), read_json(finished / f"metrics/{NAME}.json")
    assert [again[name] for name in ("recall_1", "ndcg_10")] == [metrics[name] for name in ("recall_1", "ndcg_10")]
    assert [baseline["name"] for baseline in again["baselines"]] == ["BM25"]
