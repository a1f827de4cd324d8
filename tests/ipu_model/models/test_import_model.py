"""Models of transformers come in and go out bit for bit; what is no BERT, or no plain tensors, is refused by name."""

import json
import os
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_torch import VERSION

from ipu_model.core.errors import CheckpointError
from ipu_model.models import weight_files
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import read_model

transformers = pytest.importorskip("transformers", reason="makes the models that are taken in")

OLD_TORCH = VERSION < weight_files.SAFE_TORCH
WORDS = "bert.embeddings.word_embeddings.weight"
CONFIG = {
    **{"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"max_position_embeddings": 32, "hidden_dropout_prob": 0.15, "attention_probs_dropout_prob": 0.05},
    **{"initializer_range": 0.03, "layer_norm_eps": 1e-3},
}
"""Values that BertConfig does not have by default."""


def make_theirs(architecture, **config):
    torch.manual_seed(3)
    return getattr(transformers, architecture)(transformers.BertConfig(**{**CONFIG, **config}))


def save(model, folder, **options):
    options = {"safe_serialization": True, **options} if OLD_TORCH else options
    model.save_pretrained(str(folder), **options)
    return folder


def take_in(source, target):
    target.mkdir()
    return import_model(source, target, "t" * 64)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def rewrite(folder, change):
    path = str(folder / "model.safetensors")
    save_file({name: x.contiguous() for name, x in change(load_file(path)).items()}, path, {"format": "pt"})
    return folder


TASKS = ("PreTraining", "MaskedLM", "QuestionAnswering", "SequenceClassification", "TokenClassification")


@pytest.mark.parametrize("architecture", [*(f"BertFor{task}" for task in TASKS), "BertModel"])
def test_a_model_goes_in_and_out_bit_for_bit(tmp_path, architecture):
    model = make_theirs(architecture)
    report = take_in(save(model, tmp_path / "theirs"), tmp_path / "ours")
    assert (report.architecture, report.left_out, report.widened) == (architecture, [], {})
    back, loading = getattr(transformers, architecture).from_pretrained(
        str(tmp_path / "ours"), output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    theirs, ours = model.state_dict(), back.state_dict()
    assert set(theirs) == set(ours)
    for name, value in theirs.items():
        assert value.dtype == ours[name].dtype
        assert value.numpy().tobytes() == ours[name].numpy().tobytes(), name
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    for key in config:
        if key not in ("architectures", "problem_type") and hasattr(model.config, key):
            assert config[key] == json.loads(json.dumps(getattr(model.config, key))), key


def test_what_is_missing_and_what_is_left_out_is_said(tmp_path):
    folder = save(make_theirs("BertForQuestionAnswering"), tmp_path / "theirs")
    report = take_in(folder, tmp_path / "ours")
    assert {"bert.pooler.dense.weight", "cls.predictions.bias", "cls.seq_relationship.weight"} <= set(report.missing)
    assert "qa_outputs.weight" not in report.missing
    rewrite(folder, lambda state: {**state, "classifier_of_tokens.weight": torch.ones(9, 16)})
    assert take_in(folder, tmp_path / "again").left_out == ["classifier_of_tokens.weight"]
    report = take_in(save(make_theirs("BertForMultipleChoice"), tmp_path / "choice"), tmp_path / "c")
    assert (report.left_out, report.architecture) == (["classifier.bias", "classifier.weight"], "BertModel")


def test_labels_are_kept(tmp_path):
    names = {0: "bad", 1: "fair", 2: "good"}
    model = make_theirs("BertForSequenceClassification", id2label=names, label2id={v: k for k, v in names.items()})
    take_in(save(model, tmp_path / "three"), tmp_path / "a")
    assert read_model(tmp_path / "a").labels == ["bad", "fair", "good"]


def older(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_older_names_and_shards_are_the_same_weights(tmp_path):
    model = make_theirs("BertForPreTraining")
    parts = save(model, tmp_path / "parts", max_shard_size="8KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    assert not (parts / "model.safetensors").exists()
    with_older_names = rewrite(
        save(model, tmp_path / "theirs-older"),
        lambda state: {
            "bert.embeddings.position_ids": torch.arange(32)[None],
            **{older(name): x for name, x in state.items()},
        },
    )
    whole = save(model, tmp_path / "theirs")
    for name, folder in (("whole", whole), ("parts-in", parts), ("older", with_older_names)):
        take_in(folder, tmp_path / name)
        assert weights_of(tmp_path / name) == weights_of(tmp_path / "whole")
    assert read_model(parts).state.keys() >= read_model(tmp_path / "whole").state.keys(), "ask also reads shards"


def test_half_precision_is_widened_exactly_and_said(tmp_path):
    folder = rewrite(
        save(make_theirs("BertForPreTraining"), tmp_path / "theirs"),
        lambda state: {name: x.to(torch.bfloat16) for name, x in state.items()},
    )
    halves = load_file(str(folder / "model.safetensors"))
    report = take_in(folder, tmp_path / "ours")
    state = read_model(tmp_path / "ours").state
    assert report.widened == {"bfloat16": len(state)}
    for name, x in state.items():
        assert torch.equal(x, halves[name].float()), name


def configure(folder, **config):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


def write_index(folder, **weight_map):
    os.replace(folder / "model.safetensors", folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def replace_weights(folder, name, content):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)


def drop_numbers(folder):
    rewrite(folder, lambda state: {name: x * float("nan") if "pooler" in name else x for name, x in state.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (partial(write_index, a="../model.safetensors"), "in its own folder"),
        (partial(write_index, a="model-9.safetensors"), "model-9.safetensors"),
        (partial(write_index, a="pytorch_model.bin"), "not a .safetensors file"),
        (write_index, "weight_map"),
        (partial(configure, model_type="gpt2"), "gpt2"),
        (partial(configure, hidden_act="gelu_new"), "hidden_act"),
        (partial(configure, position_embedding_type="relative_key_query"), "position_embedding_type"),
        (partial(configure, vocab_size=61), r"word_embeddings.weight has shape \(60, 16\)"),
        (partial(configure, num_hidden_layers=1), "1 layers"),
        (drop_numbers, "not finite"),
        (partial(replace_weights, name="pytorch_model.bin", content=b"PK\x03\x04 cut short"), r"pytorch_model\.bin"),
        (partial(replace_weights, name="tf_model.h5", content=b"weights"), "tf_model.h5"),
    ],
)
def test_what_is_no_such_bert_is_refused(tmp_path, change, message):
    folder = save(make_theirs("BertModel"), tmp_path / "theirs")
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        take_in(folder, tmp_path / "ours")


@pytest.mark.parametrize(("name", "limit"), [("MAX_BYTES", 1000), ("free_memory", lambda: 1000)])
def test_weights_too_large_for_a_bert_or_for_the_memory_are_refused(tmp_path, monkeypatch, name, limit):
    folder = save(make_theirs("BertModel"), tmp_path / "theirs")
    monkeypatch.setattr(weight_files, name, limit)
    with pytest.raises(CheckpointError, match="1,?000"):
        take_in(folder, tmp_path / "ours")


def test_an_untied_decoder_is_refused_and_a_tied_one_is_saved_once(tmp_path):
    folder = save(make_theirs("BertForMaskedLM"), tmp_path / "theirs")
    tied = {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"}
    rewrite(folder, lambda state: {**state, **{name: state[source].clone() for name, source in tied.items()}})
    take_in(folder, tmp_path / "ours")
    assert not set(tied) & set(read_model(tmp_path / "ours").state)
    rewrite(folder, lambda state: {**state, "cls.predictions.decoder.weight": state[WORDS] + 1.0})
    with pytest.raises(CheckpointError, match=r"decoder.weight differs from bert.embeddings.*tie_word_embeddings"):
        take_in(folder, tmp_path / "untied")


def pickle_weights(folder, values):
    (folder / "model.safetensors").unlink()
    torch.save(values, str(folder / "pytorch_model.bin"))
    return folder


def test_a_pickled_model_is_read_where_torch_reads_it_safely(tmp_path):
    model = make_theirs("BertForPreTraining")
    take_in(save(model, tmp_path / "safe"), tmp_path / "a")
    folder = pickle_weights(save(model, tmp_path / "theirs"), model.state_dict())
    with pytest.raises(CheckpointError, match="base_model.source"):
        read_model(folder)
    if OLD_TORCH:
        with pytest.raises(CheckpointError, match="CVE-2025-32434"):
            take_in(folder, tmp_path / "b")
    else:
        take_in(folder, tmp_path / "b")
        for name in ("model.safetensors", "config.json"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


class Runs:
    """Unpickled without care, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickled_file_cannot_run_code(tmp_path):
    folder = save(make_theirs("BertModel"), tmp_path / "theirs")
    pickle_weights(folder, {"weight": Runs(str(tmp_path / "ran"))})
    with pytest.raises(CheckpointError, match="CVE-2025-32434" if OLD_TORCH else "has more than tensors"):
        take_in(folder, tmp_path / "ours")
    assert not (tmp_path / "ran").exists()
    torch.load(str(folder / "pytorch_model.bin"), **({} if OLD_TORCH else {"weights_only": False}))
    assert (tmp_path / "ran").exists(), "the file does what it is meant to do where no one is careful"
