"""Whatever a file of the user or of the Hub holds, a reader ends well or with an error of our tree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipu_model.core import files
from tasks.downstream.squad.ask import find_model
from tasks.downstream.squad.params import SquadDataParams
from tasks.downstream.squad.questions import read_question_file
from tasks.downstream.squad.score_files import read_predictions
from tasks.params.overlays import resolve
from tasks.params.schema import load_params
from tasks.records.interpretation import Interpretation
from tasks.release.provenance import read_json
from tasks.stage.errors import ParamsError, PodiumError
from tasks.vocabulary.hub_tokenizer import read_vocabulary
from tests.fuzzing import damaged_bytes, damaged_json, require_clean
from tests.places import ROOT as PROJECT
from tests.tasks.corpus.made_corpus import read_all

COUNT = 90


def holds(read: Callable[[], Any], what: str) -> None:
    """`read` must return, or raise one of our errors with some text."""
    require_clean(read, what, PodiumError)


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "Ada came.",
                    "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}],
                }
            ],
        }
    ],
}
QUESTION = {"id": "1", "context": "Ada came.", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}}
TRAIN_PATH = "downstream.squad.data.train_path"
GATE = {"accepted": True, "reasons": ["none"], "metrics": {"f1": 90.0}}
READERS: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    "questions.json": (SQUAD, lambda path: read_question_file(path, TRAIN_PATH, SquadDataParams(), Interpretation())),
    "predictions.json": ({"1": "Ada", "2": ""}, read_predictions),
    "metrics.json": (GATE, lambda path: read_json(path, "dvc repro")),
    "questions.jsonl": (
        QUESTION,
        lambda path: read_question_file(path, TRAIN_PATH, SquadDataParams(), Interpretation()),
    ),
    "wiki_00": (
        {"id": "1", "title": "Ada", "text": "Ada\n\nShe came."},
        read_all,
    ),
    "text.jsonl": (
        {"text": "Ada came.", "title": "t"},
        read_all,
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_json_from_outside(tmp_path: Path, name: str) -> None:
    good, read = READERS[name]
    path = tmp_path / name
    for what, content in damaged_json(good, COUNT):
        path.write_bytes(content)
        holds(lambda: read(path), what)


def test_params_yaml(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    good = yaml.safe_load((PROJECT / "params.yaml").read_text())
    for what, content in damaged_json(good, COUNT // 9):  # JSON is YAML
        path.write_bytes(content)
        holds(lambda: load_params(path), what)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "? [a, b]\n: 1",
        "? {a: 1}\n: 1",
        "<<: 3",
        "a: &x [*x]",
        "a: 2026-99-99",
        "a: 0x" + "f" * 5000,
        "a: " + "9" * 5000,
        "- 1",
        "a: b: c",
        "\t",
        "[" * 5000,
        "{a: " * 5000,
    ],
)
def test_yaml_that_is_not_plain_values(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError):
        load_params(path)


def test_yaml_that_unfolds_to_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 12)]
    (tmp_path / "params.yaml").write_text("\n".join(lines))
    with pytest.raises(ParamsError, match="alias"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize(
    "value", ["[" * 5000, "&x [*x]", "!!python/name:os.system", "9" * 5000, "{[1]: 2}", "2026-99-99"]
)
def test_an_override_that_is_not_a_plain_value(value: str) -> None:
    base = yaml.safe_load((PROJECT / "params.yaml").read_text())
    holds(lambda: resolve(base, None, [f"downstream.squad.finetune.learning_rate={value}"], PROJECT / "presets"), value)


@pytest.mark.parametrize("name", ["../params", "../../etc/x", "/etc/passwd", "", ".", "a/b", "..", "x" * 5000, "a\0b"])
def test_a_preset_is_one_of_the_folder_and_no_path(name: str) -> None:
    with pytest.raises(ParamsError, match="is not known"):
        resolve({}, name, [], PROJECT / "presets")


def test_a_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    for what, content in damaged_bytes(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nada\n##s\n", COUNT):
        path.write_bytes(content)
        holds(lambda: read_vocabulary(path, "tokenizer.path"), what)


def test_the_folder_of_a_published_model(tmp_path: Path) -> None:
    from tests.tasks.tiny_model import write_tiny_model

    folder = write_tiny_model(tmp_path / "model", ["a", "b"], 0)
    for name in ("config.json", "tokenizer_config.json"):
        good = (folder / name).read_bytes()
        for what, content in damaged_json(json.loads(good), COUNT // 3):
            (folder / name).write_bytes(content)
            holds(lambda: find_model(str(folder)), f"{name}, {what}")
        (folder / name).write_bytes(good)


def test_what_is_left_of_artifacts_is_read_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 10)
    (tmp_path / "big.json").write_text('"' + "x" * 20 + '"')
    with pytest.raises(ValueError, match="22 bytes.*up to 10"):
        files.read_json(tmp_path / "big.json")
