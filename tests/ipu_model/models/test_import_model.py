"""Models of transformers come in and go out bit for bit; what is no BERT, or no plain tensors, is refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ipu_model.core.errors import CheckpointError
from ipu_model.models import weight_files
from ipu_model.models.import_model import ImportReport, import_model
from ipu_model.models.model_folder import read_model

transformers = pytest.importorskip("transformers", reason="makes the models that are taken in")

TOKENIZER = "t" * 64
OLD_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) < weight_files.SAFE_TORCH
WORDS = "bert.embeddings.word_embeddings.weight"


def their_model(architecture: str, **config: Any) -> Any:
    """A random model of transformers with values that BertConfig does not have by default."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes.update(intermediate_size=32, max_position_embeddings=32)
    rates = {"hidden_dropout_prob": 0.15, "attention_probs_dropout_prob": 0.05, "initializer_range": 0.03}
    values = {**sizes, **rates, "layer_norm_eps": 1e-3, **config}
    torch.manual_seed(3)
    return getattr(transformers, architecture)(transformers.BertConfig(**values))


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(str(folder), safe_serialization=True, **options) if OLD_TORCH else model.save_pretrained(
        str(folder), **options
    )
    return folder


def taken_in(source: Path, target: Path) -> ImportReport:
    target.mkdir()
    return import_model(source, target, TOKENIZER)


def rewritten(folder: Path, change: Any) -> Path:
    path = str(folder / "model.safetensors")
    state: Dict[str, Tensor] = change(load_file(path))
    save_file({name: x.contiguous() for name, x in state.items()}, path, {"format": "pt"})
    return folder


_TASKS = ("PreTraining", "MaskedLM", "QuestionAnswering", "SequenceClassification", "TokenClassification")
ARCHITECTURES = [*(f"BertFor{task}" for task in _TASKS), "BertModel"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_goes_in_and_out_bit_for_bit(tmp_path: Path, architecture: str) -> None:
    model = their_model(architecture)
    found = taken_in(save(model, tmp_path / "theirs"), tmp_path / "ours")
    assert found.architecture == architecture
    assert (found.left_out, found.widened) == ([], {})
    back, report = getattr(transformers, architecture).from_pretrained(str(tmp_path / "ours"), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    theirs, ours = model.state_dict(), back.state_dict()
    assert set(theirs) == set(ours)
    for name, value in theirs.items():
        assert value.dtype == ours[name].dtype
        assert value.numpy().tobytes() == ours[name].numpy().tobytes(), name
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    for key in config:
        if key not in ("architectures", "problem_type") and hasattr(model.config, key):
            assert config[key] == json.loads(json.dumps(getattr(model.config, key))), key


def test_what_is_missing_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    model = their_model("BertForQuestionAnswering")
    found = taken_in(save(model, tmp_path / "theirs"), tmp_path / "ours")
    assert {"bert.pooler.dense.weight", "cls.predictions.bias", "cls.seq_relationship.weight"} <= set(found.missing)
    assert "qa_outputs.weight" not in found.missing
    folder = rewritten(tmp_path / "theirs", lambda state: {**state, "classifier_of_tokens.weight": torch.ones(9, 16)})
    found = taken_in(folder, tmp_path / "again")
    assert found.left_out == ["classifier_of_tokens.weight"]


def test_labels_are_kept_and_the_classifier_of_another_task_is_left_out(tmp_path: Path) -> None:
    names = {0: "bad", 1: "fair", 2: "good"}
    model = their_model("BertForSequenceClassification", id2label=names, label2id={v: k for k, v in names.items()})
    taken_in(save(model, tmp_path / "three"), tmp_path / "a")
    assert read_model(tmp_path / "a").labels == ["bad", "fair", "good"]
    found = taken_in(save(their_model("BertForMultipleChoice"), tmp_path / "choice"), tmp_path / "c")
    assert (found.left_out, found.architecture) == (["classifier.bias", "classifier.weight"], "BertModel")


def test_older_names_and_a_bare_encoder_are_the_same_weights(tmp_path: Path) -> None:
    model = their_model("BertModel")
    folder = save(model, tmp_path / "theirs")
    taken_in(folder, tmp_path / "ours")
    more = {"embeddings.position_ids": torch.arange(32)[None]}

    def older(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    rewritten(folder, lambda state: {older(name): x for name, x in {**state, **more}.items()})
    taken_in(folder, tmp_path / "older")
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == (
        tmp_path / "older" / "model.safetensors"
    ).read_bytes()


def test_half_precision_is_widened_exactly_and_said(tmp_path: Path) -> None:
    folder = rewritten(
        save(their_model("BertForPreTraining"), tmp_path / "theirs"),
        lambda state: {name: x.to(torch.bfloat16) for name, x in state.items()},
    )
    halves = load_file(str(folder / "model.safetensors"))
    found = taken_in(folder, tmp_path / "ours")
    assert found.widened == {"bfloat16": len(read_model(tmp_path / "ours").state)}
    for name, x in read_model(tmp_path / "ours").state.items():
        assert torch.equal(x, halves[name].float()), name


def test_shards_are_one_model(tmp_path: Path) -> None:
    model = their_model("BertForPreTraining")
    whole, parts = save(model, tmp_path / "whole"), save(model, tmp_path / "parts", max_shard_size="8KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    assert not (parts / "model.safetensors").exists()
    taken_in(whole, tmp_path / "a")
    taken_in(parts, tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert read_model(parts).state.keys() >= read_model(tmp_path / "a").state.keys(), "ask also reads shards"


def configured(**config: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))

    return change


def indexed(**weight_map: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        os.replace(folder / "model.safetensors", folder.parent / "model.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


def replaced(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)

    return change


def without_numbers(folder: Path) -> None:
    rewritten(folder, lambda state: {name: x * float("nan") if "pooler" in name else x for name, x in state.items()})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (indexed(a="../model.safetensors"), "in its own folder"),
        (indexed(a="model-9.safetensors"), "model-9.safetensors"),
        (indexed(a="pytorch_model.bin"), "not a .safetensors file"),
        (indexed(), "weight_map"),
        (configured(model_type="gpt2"), "gpt2"),
        (configured(hidden_act="gelu_new"), "hidden_act"),
        (configured(position_embedding_type="relative_key_query"), "position_embedding_type"),
        (configured(vocab_size=61), r"word_embeddings.weight has shape \(60, 16\)"),
        (configured(num_hidden_layers=1), "1 layers"),
        (without_numbers, "not finite"),
        (replaced("pytorch_model.bin", b""), r"pytorch_model\.bin"),
        (replaced("pytorch_model.bin", b"PK\x03\x04 cut short"), r"pytorch_model\.bin"),
        (replaced("tf_model.h5", b"weights"), "tf_model.h5"),
    ],
)
def test_what_is_no_such_bert_is_refused(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    folder = save(their_model("BertModel"), tmp_path / "theirs")
    change(folder)
    with pytest.raises(CheckpointError, match=said):
        taken_in(folder, tmp_path / "ours")


@pytest.mark.parametrize(("name", "limit"), [("MAX_BYTES", 1000), ("free_memory", lambda: 1000)])
def test_weights_too_large_for_a_bert_or_for_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: Any
) -> None:
    folder = save(their_model("BertModel"), tmp_path / "theirs")
    monkeypatch.setattr(weight_files, name, limit)
    with pytest.raises(CheckpointError, match="1,?000"):
        taken_in(folder, tmp_path / "ours")


def test_an_untied_decoder_is_refused_and_a_tied_one_is_saved_once(tmp_path: Path) -> None:
    folder = save(their_model("BertForMaskedLM"), tmp_path / "theirs")
    both = {"cls.predictions.decoder.weight": 1.0, "cls.predictions.decoder.bias": 1.0}
    tied = {"weight": WORDS, "bias": "cls.predictions.bias"}
    copied = {f"cls.predictions.decoder.{kind}": name for kind, name in tied.items()}
    rewritten(folder, lambda state: {**state, **{name: state[own].clone() for name, own in copied.items()}})
    taken_in(folder, tmp_path / "ours")
    assert not set(both) & set(read_model(tmp_path / "ours").state)
    rewritten(folder, lambda state: {**state, "cls.predictions.decoder.weight": state[WORDS] + 1.0})
    with pytest.raises(CheckpointError, match=r"decoder.weight differs from bert.embeddings.*tie_word_embeddings"):
        taken_in(folder, tmp_path / "untied")


def as_pickle(folder: Path, values: Any) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save(values, str(folder / "pytorch_model.bin"))
    return folder


def test_a_pickled_model_is_read_where_torch_reads_it_safely(tmp_path: Path) -> None:
    model = their_model("BertForPreTraining")
    taken_in(save(model, tmp_path / "safe"), tmp_path / "a")
    folder = as_pickle(save(model, tmp_path / "theirs"), model.state_dict())
    with pytest.raises(CheckpointError, match="base_model.source"):
        read_model(folder)
    if OLD_TORCH:
        with pytest.raises(CheckpointError, match="CVE-2025-32434"):
            taken_in(folder, tmp_path / "b")
    else:
        taken_in(folder, tmp_path / "b")
        names = ("model.safetensors", "config.json")
        assert [(tmp_path / "a" / n).read_bytes() for n in names] == [(tmp_path / "b" / n).read_bytes() for n in names]


class Runs:
    """Unpickled without care, it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_pickled_file_cannot_run_code(tmp_path: Path) -> None:
    folder = as_pickle(save(their_model("BertModel"), tmp_path / "theirs"), {"weight": Runs(str(tmp_path / "ran"))})
    with pytest.raises(CheckpointError, match="CVE-2025-32434" if OLD_TORCH else "has more than tensors"):
        taken_in(folder, tmp_path / "ours")
    assert not (tmp_path / "ran").exists()
    torch.load(str(folder / "pytorch_model.bin"), **({} if OLD_TORCH else {"weights_only": False}))
    assert (tmp_path / "ran").exists(), "the file does what it is meant to do where no one is careful"
