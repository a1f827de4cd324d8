"""The forms of a model folder that docs/checkpoints.md lists, in every command that reads one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flows.commands.finetune import fit_rows
from flows.runs.model_source import model_parameters
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.job import InferenceOptions
from tasks.downstream.inference.model import find_model
from tasks.downstream.inference.predict import PredictionOutput, evaluate, predict
from tasks.downstream.squad.ask import WindowShape, ask
from tasks.params.overlays import make_settings, resolve
from tasks.params.schema import validate_params
from tasks.params.sections import RuntimeSpec
from tasks.pretraining.base_model import write_base_model
from tasks.stage.errors import PodiumError
from tasks.vocabulary.tokenizer import make_tokenizer
from tests.places import ROOT
from tests.tasks.downstream.inference.head_models import write_head_model
from tests.tasks.downstream.texts.glue_checkout import run_jobs_here
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

WORDS = ["the", "town", "lies", "in", "a", "valley", "who", "where", "is", "what", "ada"]
CONTEXT, QUESTION = "The town sits in a valley", "where is the town"


def as_shards(folder: Path, ending: str) -> None:
    whole = "model.safetensors" if ending == "safetensors" else "pytorch_model.bin"
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(state), {}
    for number, part in enumerate((names[:9], names[9:]), 1):
        name = f"{whole.split('.')[0]}-{number:05}-of-00002.{ending}"
        some = {key: state[key] for key in part}
        save_file(some, folder / name) if ending == "safetensors" else torch.save(some, folder / name)
        places |= dict.fromkeys(part, name)
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_few_positions(folder: Path) -> None:
    name = "bert.embeddings.position_embeddings.weight"
    state = load_file(folder / "model.safetensors")
    save_file({**state, name: state[name][:128].clone()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))


def with_vocabulary_file_only(folder: Path) -> None:
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*SPECIAL, *WORDS]))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


FORMS: dict[str, Callable[[Path], None]] = {
    "`model.safetensors`": lambda folder: None,
    "shards with `model.safetensors.index.json`": lambda folder: as_shards(folder, "safetensors"),
    "`pytorch_model.bin`": as_pickle,
    "shards with `pytorch_model.bin.index.json`": lambda folder: as_shards(folder, "bin"),
    "`vocab.txt` without `tokenizer.json`": with_vocabulary_file_only,
    "128 positions (`max_position_embeddings`)": with_few_positions,
}
ONE_TYPE = "one token type (`type_vocab_size: 1`)"
COMMANDS = ("finetune", "evaluate", "predict", "predict --context")


def test_the_document_lists_these_forms_and_commands() -> None:
    lines = (ROOT / "docs/checkpoints.md").read_text().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| form |"))
    assert [cell.strip(" `") for cell in lines[head].split("|")[2:-1]] == [f"podium {name}" for name in COMMANDS]
    rows = [line.split("|")[1:-1] for line in lines[head + 2 : lines.index("", head)]]
    expected = {**dict.fromkeys(FORMS, ["yes"] * 4), ONE_TYPE: [*["single texts"] * 3, "refused"]}
    assert {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows} == expected


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """A model in the plain form, and its answers."""
    folder = write_tiny_model(tmp_path_factory.mktemp("forms") / "plain", WORDS)
    return folder, answers(folder, folder.parent)


@pytest.mark.parametrize("form", FORMS)
def test_every_command_reads_every_form(plain: tuple[Path, list[object]], tmp_path: Path, form: str) -> None:
    """With the same answers as of the plain form."""
    other = write_tiny_model(tmp_path / "other", WORDS)
    FORMS[form](other)
    model = model_parameters("other", tmp_path, tmp_path)
    entry = "downstream.own={kind: squad, data: {source: files}}"
    overrides = [*make_settings(model), entry, *make_settings(fit_rows("squad", "downstream.own", model))]
    params = validate_params(
        resolve({}, "finetune", [*overrides, f'base_model.path="{other}"', f'tokenizer.path="{other}"'])
    )
    make_tokenizer(params.tokenizer, 512, tmp_path, tmp_path / "tokenizer")
    record = write_base_model(params.base_model, params.model, tmp_path / "tokenizer", tmp_path / "base")
    assert record["left_out"] == []
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "base", plain[0]))
    assert all(torch.equal(theirs[name][: len(weight)], weight) for name, weight in ours.items())
    assert answers(other, tmp_path) == plain[1]


@pytest.mark.soak
def test_a_model_with_one_token_type_reads_single_texts_and_refuses_pairs_by_name(tmp_path: Path) -> None:
    """podium finetune: tests/flows/checks/test_given_models.py."""
    how = InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, lambda text: None)
    texts = find_model(str(write_head_model(tmp_path / "texts", "sequence_classification", ("a", "b"), WORDS, 512, 1)))
    (tmp_path / "dev.csv").write_text("text,label\nada is where,a\nthe town,b\n")
    entry = infer_entry(texts, "classification")
    assert evaluate(entry, texts, tmp_path / "dev.csv", tmp_path / "evaluation", how)[0]
    predict(entry, texts, tmp_path / "dev.csv", PredictionOutput(tmp_path / "answers.csv", "csv"), how)
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 3

    asked = find_model(str(write_head_model(tmp_path / "qa", "question_answering", (), WORDS, 512, 1)))
    (tmp_path / "dev.jsonl").write_text(json.dumps({"id": "1", "context": CONTEXT, "question": QUESTION}) + "\n")
    said = "type_vocab_size of its config.json is 1"
    with pytest.raises(PodiumError, match=said):
        ask(asked, QUESTION, CONTEXT, WindowShape.for_model(asked))
    with pytest.raises(PodiumError, match=said):
        predict(
            infer_entry(asked), asked, tmp_path / "dev.jsonl", PredictionOutput(tmp_path / "spans.jsonl", "jsonl"), how
        )


def answers(folder: Path, place: Path) -> list[object]:
    """What evaluate, predict and ask make of a folder, in this process."""
    model = find_model(str(folder))
    entry, how = infer_entry(model), InferenceOptions(RuntimeSpec("cpu", "fp32"), 8, lambda text: None)
    answer = {"text": ["valley"], "answer_start": [CONTEXT.index("valley")]}
    record = {"id": "1", "context": CONTEXT, "question": QUESTION, "answers": answer}
    (place / "dev.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        run_jobs_here(patch)
        metrics, _ = evaluate(entry, model, place / "dev.jsonl", place / f"evaluation-{folder.name}", how)
        predict(entry, model, place / "dev.jsonl", PredictionOutput(place / f"{folder.name}.jsonl", "jsonl"), how)
        [best], _ = ask(model, QUESTION, CONTEXT, WindowShape.for_model(model))
    return [metrics["f1"], (place / f"{folder.name}.jsonl").read_text(), best]
