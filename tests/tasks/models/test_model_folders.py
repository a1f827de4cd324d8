"""Model folders: what is not one model is refused, and what its files state is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.runs.model_source import model_parameters
from tasks.downstream.inference.model import find_model
from tasks.models.model_card import read_origin
from tasks.stage.errors import InputError
from tests.tasks.tiny_model import write_tiny_model

MODEL, ADAPTER = "model/config.json", "adapter_config.json"


def adapter_alone(folder: Path) -> Path:
    (folder / "adapter").mkdir()
    (folder / "adapter" / ADAPTER).write_text("{}")
    return folder / "adapter"


def adapter_next_to_model(folder: Path) -> Path:
    (folder / "model" / ADAPTER).write_text("{}")
    return folder / "model"


def several_checkpoints(folder: Path) -> Path:
    for number in (10, 20):
        write_tiny_model(folder / f"runs/checkpoint-{number}", ["a"])
    return folder / "runs"


def inside(folder: Path) -> Path:
    (folder / "model/logs").mkdir()
    return folder / "model/logs"


def own_code(folder: Path) -> Path:
    values = json.loads((folder / MODEL).read_text())
    (folder / MODEL).write_text(json.dumps(values | {"auto_map": {"AutoModel": "code.Model"}}))
    return folder / "model"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (adapter_alone, "is an adapter without its model"),
        (adapter_next_to_model, "is an adapter next to a model"),
        (lambda folder: folder, "its folders model have one"),
        (several_checkpoints, "checkpoint-10, checkpoint-20 have one"),
        (inside, "name the folder above it, model,"),
        (own_code, "has Python code of its own"),
    ],
)
def test_a_folder_that_is_not_one_model_is_named(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    write_tiny_model(tmp_path / "model", ["a"])
    folder = make(tmp_path)
    with pytest.raises(InputError, match=message):
        model_parameters(str(folder), tmp_path, tmp_path)
    with pytest.raises(InputError, match=message):
        find_model(str(folder))


def test_a_checkpoint_of_a_trainer_is_read(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "runs/checkpoint-10", ["a"])
    for name in ("trainer_state.json", "optimizer.pt", "training_args.bin"):
        (folder / name).write_text("{}")
    assert model_parameters(str(folder), tmp_path, tmp_path)["base_model.path"] == "runs/checkpoint-10"
    assert find_model(str(folder)).folder == folder


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\nlanguage: am\n---\n# x\n", {"license": "mit", "language": "am"}),
        ("---\r\nlanguage:\r\n- de\r\n- en\r\n---\r\n", {"language": ["de", "en"]}),
        ("---\nlicense: mit\nlanguage: no\nvalue: 3e-5\n---\n", {"license": "mit", "language": "no"}),
        ("\ufeff---\nlicense: cc-by-4.0\n---", {"license": "cc-by-4.0"}),
        ("no front matter\n---\nlicense: mit\n---\n", {}),
        ("---\nlicense: [mit, gpl]\nlanguage: {a: b}\n---\n", {}),
        ("---\nlicense: <b>x\nlanguage: [en, 'a b']\n---\n", {}),
        ("---\nlicense: &a [*a\n---\n", {}),
    ],
)
def test_what_the_files_state_is_read(tmp_path: Path, card: str, expected: dict[str, Any]) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    (tmp_path / "config.json").write_text("{}")
    assert read_origin(tmp_path) == {"license": None, "language": None, **expected}
