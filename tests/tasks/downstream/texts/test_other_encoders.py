"""Other encoders and ModernBERT, from a folder of transformers through every stage to a release that it loads."""

import json
import random

import pytest
import torch

from flows.runs.model_source import add_prefix_space, model_parameters
from ipu_model.core.files import read_json
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import PredictionOutput, predict
from tasks.params.sections import RuntimeSpec
from tasks.params.strict_yaml import value_at
from tasks.pretraining import base_model
from tasks.release import publish
from tasks.vocabulary import tokenizer
from tasks.vocabulary.hub_tokenizer import load_local_vocabulary
from tests.tasks.downstream.entries import values_with, write_parameters
from tests.tasks.downstream.generated import CLASSES, ENTRY, NAME, require_published_logits, values_of, write_texts
from tests.tasks.downstream.texts.glue_checkout import run_entry, run_stage
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.trained_checkout import write_lock
from tests.tasks.vocabulary.fast_tokenizers import save_fast_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("jobs_here")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIGS = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "mpnet": {"pad_token_id": 1},
    "albert": {"embedding_size": 16},
}


def run_all(place, values, model_type, monkeypatch):
    """The checkout and metrics of all stages from a random model of transformers to a release; the model has its own
    tokenizer (Unigram, byte-level, or MPNet's special tokens), and more words than that."""
    folder = save_fast_tokenizer(model_type.removesuffix("-v2"), place / "checkout" / "theirs").parent
    entries = len(load_local_vocabulary(folder / "theirs", True).tokens)
    sizes = {**SIZES, "vocab_size": entries + 7, "max_position_embeddings": 66, **CONFIGS.get(model_type, {})}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **sizes, initializer_range=0.1)
    transformers.AutoModel.from_config(config).save_pretrained(folder / "theirs")
    given = model_parameters("theirs", folder, folder)
    given |= add_prefix_space(given, folder) if values["downstream"][NAME]["kind"] == "ner" else {}
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        (value_at(values, section) if section else values)[name] = value
    write_lock(folder, write_parameters(folder, values))
    (folder / "inputs/ipu").mkdir(parents=True)
    monkeypatch.chdir(folder)
    run_stage(tokenizer)
    run_stage(base_model)
    metrics = run_entry(folder, NAME, monkeypatch)
    run_stage(publish, NAME)
    return folder, metrics


def predicted(folder, file):
    """Records of the published model."""
    model, how = find_model(str(folder / "published" / NAME)), InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, print)
    predict(infer_entry(model), model, file, PredictionOutput(folder / "out.jsonl", "jsonl"), how)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "model_type",
    ["deberta-v2", "modernbert", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("mpnet", "albert"))],
)
def test_a_tuned_model_is_the_same_in_transformers(tmp_path, monkeypatch, model_type):
    write_texts(tmp_path / "train.csv", 240, seed=0)
    dev = write_texts(tmp_path / "dev.csv", 60, seed=1)
    data = {f"{split}_path": str(tmp_path / f"{split}.csv") for split in ("train", "dev")}
    folder, metrics = run_all(tmp_path, values_of(data, finetune={"epochs": 6.0}), model_type, monkeypatch)
    assert metrics["accuracy"] > 90
    packed = read_json(folder / f"data/rows/{NAME}/train/manifest.json")["max_sequences"] > 1
    assert packed == (model_type == "modernbert")
    theirs, config = require_published_logits(folder, [texts for *texts, _ in dev])
    assert (config.model_type, [config.id2label[number] for number in range(3)]) == (model_type, list(CLASSES))
    answers = [record["label"] for record in predicted(folder, tmp_path / "dev.csv")]
    assert answers == [CLASSES[number] for number in theirs.argmax(1)]


EMOJI = ["👍🏽", "👨\u200d👩\u200d👧", "🇫🇷", "e\u0301a\u0308", *WORDS[:4]]
"""Words to find: in questions the answer, in sentences the entity."""


def write_examples(path, kind, count):
    """Words with one of EMOJI among them, and its place."""
    draw, made, lines = random.Random(path.stem), [], []
    for number in range(count):
        words = draw.choices(WORDS[10:], k=draw.randint(3, 9))
        words.insert(place := draw.randint(0, len(words)), draw.choice(EMOJI))
        made.append((words, place))
        if kind == "ner":
            lines += [*(f"{word}\t{'B-it' if n == place else 'O'}\n" for n, word in enumerate(words)), "\n"]
            continue
        answer = {"text": [words[place]], "answer_start": [2 + len(" ".join([*words[:place], ""]))]}
        asked = {"id": f"{path.stem}{number}", "context": "  " + " ".join(words), "question": "Which one?"}
        lines.append(json.dumps({**asked, "answers": answer}) + "\n")
    path.write_text("".join(lines))
    return made


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("squad", "roberta"),
        pytest.param("ner", "roberta", marks=pytest.mark.soak),
        ("ner", "xlm-roberta"),
        ("squad", "modernbert"),
        pytest.param("ner", "modernbert", marks=pytest.mark.soak),
    ],
)
def test_answers_are_the_text_that_was_read(tmp_path, monkeypatch, kind, family):
    ending = {"squad": "jsonl", "ner": "conll"}[kind]
    write_examples(tmp_path / f"train.{ending}", kind, 160)
    dev = write_examples(tmp_path / f"dev.{ending}", kind, 40)
    shape = {"doc_stride": 8, "max_question_length": 8} if kind == "squad" else {"overlap": 8}
    entry = {
        "kind": kind,
        "data": {f"{split}_path": str(tmp_path / f"{split}.{ending}") for split in ("train", "dev")},
        "rows": {"row_length": 64, "max_sequences_per_row": 4, **shape},
        "finetune": {**ENTRY["finetune"], "global_batch_size": 16},
        "gate": {"min_f1": 90.0},
    }
    values = values_with({"squad": None, NAME: entry}, pretrain={"enabled": False})
    folder, metrics = run_all(tmp_path, values, family, monkeypatch)
    assert metrics["f1"] > 90
    right = 0
    for (words, place), record in zip(dev, predicted(folder, tmp_path / f"dev.{ending}"), strict=True):
        if kind == "ner":
            assert record["tokens"] == words
            right += [entity["text"] for entity in record["entities"]] == [words[place]]
        else:
            answer = record["answer"]
            assert answer == ("  " + " ".join(words))[record["start"] : record["end"]] == answer.strip()
            right += answer == words[place]
    # ModernBERT's normal form joins two marks of one of the words, which then belong to no token.
    assert right > (30 if (kind, family) == ("squad", "modernbert") else 36)
