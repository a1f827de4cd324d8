"""A release loaded in transformers as its card shows, for each kind of task and family: the ids of the rows, and the
logits that Podium computes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from flows.runs.model_source import add_prefix_space, model_parameters
from ipu_model.core.files import sha256_of
from tasks.downstream.inference import job
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions, run_inference, scratch_checkout
from tasks.downstream.inference.model import find_model
from tasks.models.model_folders import import_model_folder, packs_rows
from tasks.params.downstream import kind_params
from tasks.params.schema import TokenizerParams
from tasks.params.sections import RuntimeSpec
from tasks.records.interpretation import Interpretation
from tasks.vocabulary.tokenizer import make_tokenizer
from tests.tasks.downstream.entries import part_of
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.pretraining.row_inputs import WORDS
from tests.tasks.tiny_model import write_tokenizer
from tests.tasks.vocabulary.fast_tokenizers import KINDS, save_fast_tokenizer

transformers = pytest.importorskip("transformers")

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "distilbert": {},
    "electra": {"embedding_size": 16},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "mpnet": {"pad_token_id": 1},
}
"""Family -> its keys of config.json; the last two are computed by transformers."""
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES_OF_DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
LABELS = {
    "squad": ("LABEL_0", "LABEL_1"),
    "ner": ("O", "B-it", "I-it"),
    "single": ("bad", "good", "none"),
    "pair": ("bad", "good", "none"),
}
HEADS = {"squad": "QuestionAnswering", "ner": "TokenClassification"}
FIRSTS = [" ".join(WORDS[number : number + 3 + number % 4]) for number in range(0, 24, 3)]
SECONDS = [" ".join(WORDS[number : number + 6]) for number in range(20, 44, 3)]


def save_model(family: str, form: str, folder: Path) -> Path:
    """A random model with its head, as its user brings it."""
    path = folder / "theirs"
    if family in KINDS:
        save_fast_tokenizer(family, path)
    else:
        write_tokenizer(path, list(WORDS), 66)
    entries = len(transformers.AutoTokenizer.from_pretrained(path))
    sizes = SIZES_OF_DISTILBERT if family == "distilbert" else SIZES
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=entries,
        max_position_embeddings=66,
        initializer_range=0.3,
        id2label=dict(enumerate(LABELS[form])),
        **sizes,
        **FAMILIES[family],
    )
    head = HEADS.get(form, "SequenceClassification")
    getattr(transformers, f"AutoModelFor{head}").from_config(config).save_pretrained(path)
    return path


def release(theirs: Path, kind: str, folder: Path) -> Path:
    """What the stages tokenizer and base_model make of a model, in one folder, which is what a release copies."""
    project = folder / "project"  # elsewhere, so that paths are absolute
    stated = model_parameters(str(theirs), folder, project)
    stated |= add_prefix_space(stated, project) if kind_params(kind).reads_words else {}
    settings = {name.partition(".")[2]: value for name, value in stated.items() if name.startswith("tokenizer.")}
    made = folder / "release"
    make_tokenizer(TokenizerParams(**settings), 64, folder, made)
    weights = theirs  # as the stage finetune leaves a model that transformers computes
    if packs_rows(json.loads((theirs / "config.json").read_text())["model_type"]):
        (weights := folder / "weights").mkdir()
        import_model_folder(theirs, weights, sha256_of(made / "tokenizer.json"), str(theirs))
    for name in ("config.json", "model.safetensors"):
        shutil.copy(weights / name, made)
    return made


def write_file(form: str, folder: Path) -> Path:
    if form == "ner":
        path = folder / "in.conll"
        path.write_text("\n".join("".join(f"{word}\tO\n" for word in text.split()) for text in FIRSTS))
        return path
    records: list[dict[str, Any]] = []
    for first, second in zip(FIRSTS, SECONDS, strict=True):
        answers = {"text": [second.split()[0]], "answer_start": [0]}
        record = {"text": first, "label": "good"} | ({"text_pair": second} if form == "pair" else {})
        asked = {"id": str(len(records)), "question": first, "context": second, "answers": answers}
        records.append(asked if form == "squad" else record)
    path = folder / "in.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def read_table(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def compute(released: Path, kind: str, path: Path) -> tuple[list[list[int]], list[list[np.ndarray]]]:
    """The ids of each sequence in the rows, and its logits: an array for each output."""
    model = find_model(str(released)).with_absolute_paths()
    shape: dict[str, Any] = {"squad": {"max_question_length": 24, "doc_stride": 8}, "ner": {"overlap": 8}}.get(kind, {})
    shape |= {"row_length": 64, "max_sequences_per_row": 1}
    entry = infer_entry(model, kind, {"rows": shape})
    with scratch_checkout(entry, model):
        [split] = entry.development
        part_of(entry, "inference").write_labelled(path, entry.examples_file(split), Interpretation())
        run_inference(part_of(entry, "encoder"), model, split, InferenceOptions(RuntimeSpec("cpu", "fp32"), 4, print))
        [rows] = entry.rows_folder(split).glob("*.arrow")
        table = read_table(rows)
        numbers = table["feature_ids"].to_pylist()
        pairs = zip(numbers, table["input_ids"].to_pylist(), table["sequence_ids"].to_pylist(), strict=True)
        ids = {row[0]: np.array(tokens)[np.array(owners) > 0].tolist() for row, tokens, owners in pairs}
        logits = read_table(Path("predictions") / entry.name / f"{split}.arrow")
    outputs = [name for name in logits.schema.names if name != "feature_id"]
    values = [[np.array(row[name]) for name in outputs] for row in logits.to_pylist()]
    return [ids[number] for number in range(len(ids))], values


@pytest.mark.parametrize("form", LABELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_release_has_the_ids_and_logits_of_podium(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, form: str
) -> None:
    monkeypatch.setattr(job, "run_device_job", device_job_here)
    kind = {"single": "classification", "pair": "classification"}.get(form, form)
    released = release(save_model(family, form, tmp_path), kind, tmp_path)
    ids, logits = compute(released, kind, write_file(form, tmp_path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(released)
    head = HEADS.get(form, "SequenceClassification")
    model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(released).eval()
    assert len(ids) == len(FIRSTS)
    for number, (first, second) in enumerate(zip(FIRSTS, SECONDS, strict=True)):
        texts = (first,) if form in ("ner", "single") else (first, second)
        encoded = tokenizer(*texts, return_tensors="pt")
        assert encoded["input_ids"][0].tolist() == ids[number]
        if form == "ner":
            assert tokenizer(first.split(), is_split_into_words=True)["input_ids"] == ids[number]
        with torch.no_grad():
            output = model(**encoded)
        theirs = [output.start_logits, output.end_logits] if form == "squad" else [output.logits]
        for ours, expected in zip(logits[number], theirs, strict=True):
            np.testing.assert_allclose(ours.reshape(expected[0].shape), expected[0].numpy(), rtol=1e-4, atol=1e-5)
