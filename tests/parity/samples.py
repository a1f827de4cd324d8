"""Single samples cut out of packed rows, without padding, and models with equal weights."""

import numpy as np
import pytest
import torch
import transformers
from tiny_jobs import LABELS, TINY, head_of, labels_of, make_columns, write_rows

from ipu_model.models.families import configure_model, get_family
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import missing_parameters, read_model
from ipu_model.models.modeling import build_model, is_exempt
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

RATE, DECAY = 1e-3, 0.1
EPS = 1e-4
"""Far above the gradients that are zero but for rounding, as those of key biases are; Adam would scale them up."""
TASKS = {
    "question_answering": "QuestionAnswering",
    "sequence_classification": "SequenceClassification",
    "sequence_multilabel": "SequenceClassification",
    "sequence_regression": "SequenceClassification",
    "token_classification": "TokenClassification",
    "masked_lm": "MaskedLM",
    "pretrain": "PreTraining",
}
"""Kind of rows -> the class of transformers that computes the loss, by its problem_type."""
OF_SEQUENCES = {"class_labels": "labels", "targets": "labels", "next_sentence_labels": "next_sentence_label"}
OF_SEQUENCES.update({name: name for name in ("start_positions", "end_positions")}, feature_ids="feature_id")
"""Columns with a number for each sequence -> arguments of transformers."""


def make_batch(folder, kind, config, rows=12, stretch=1):
    columns = make_columns(kind, rows, seed=3, stretch=stretch)
    if config.type_vocab_size == 1:
        columns["token_type_ids"][:] = 0
    write_rows(folder, kind, columns)
    return RowFolder(folder, kind, config, labels_of(kind)).take(np.arange(rows))


def samples(batch):
    """Every sequence alone: its tokens, and its labels counted from its own start; no padding."""
    for row, slot in np.argwhere(batch.columns["cls_positions"] >= 0):
        numbers = {name: x[row] for name, x in batch.columns.items()}
        cells = {name: torch.tensor(x if x.dtype == np.float32 else x.astype(int)) for name, x in numbers.items()}
        here, first = cells["sequence_ids"] == slot + 1, cells["cls_positions"][slot]
        sample = {name: cells[name][None, here] for name in ("input_ids", "token_type_ids")}
        for column, name in OF_SEQUENCES.items():
            if column in cells:
                sample[name] = cells[column][None, slot] - (first if column.endswith("positions") else 0)
        if "masked_labels" in cells:
            labels, used = torch.full((len(here),), -100), cells["masked_labels"] != -100
            labels[cells["masked_positions"][used]] = cells["masked_labels"][used]
            sample["labels"] = labels[None, here]
        elif "label_flags" in cells:
            sample["labels"] = cells["label_flags"].view(-1, len(LABELS))[None, slot].float()
        elif "token_labels" in cells:
            sample["labels"] = cells["token_labels"][None, here]
        yield sample


def configure_theirs(family, labels, **dropouts):
    """The configuration of transformers for a tiny model of one of our families."""
    sizes = {name: getattr(TINY, name) for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size")}
    rates = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.5}
    values = get_family(family).write_values(configure_model(60, family, max_positions=24, **sizes, **rates))
    values.update({name: 8 for name in ("embedding_size", "local_attention") if name in values})
    values.update({"qa_dropout": 0.0, "seq_classif_dropout": 0.0, **dropouts})
    names = {"id2label": {str(number): name for number, name in enumerate(LABELS)}} if labels else {}
    return transformers.AutoConfig.for_model(**values, **names)


def draw_theirs(config, task, **options):
    """A random model of transformers, biases and norms included."""
    torch.manual_seed(5)
    theirs = getattr(transformers, f"AutoModel{task}").from_config(config, **options).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    return theirs


def import_theirs(theirs, folder):
    """Ours, imported from folder/theirs, where their model is saved; nothing is left out."""
    (folder / "ours").mkdir()
    report = import_model(folder / "theirs", folder / "ours", "t" * 64)
    assert (report.architecture, report.left_out) == (type(theirs).__name__, [])
    return read_model(folder / "ours")


def load_theirs(folder, kind):
    """Their model of one of our folders, which has every weight and no other."""
    load = getattr(transformers, f"AutoModelFor{TASKS[kind]}").from_pretrained
    theirs, report = load(folder, output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return theirs


def build(imported, kind):
    """The model of an imported folder, whose every weight is there."""
    model = build_model(head_of(kind), imported.config, labels_of(kind))
    assert missing_parameters(imported, model.state_dict()) == []
    model.load_state_dict({name: imported.state[name] for name in model.state_dict()})
    return model


def read_by_theirs(sample, config):
    unread = {"feature_id"} if config.type_vocab_size else {"feature_id", "token_type_ids"}
    return {name: x for name, x in sample.items() if name not in unread}


def require_same_logits(model, kind, batch, config, *others):
    """Packed rows give the logits of their models on each sequence alone."""
    ours = {x.feature_id: x.columns for x in TorchRuntime(model, head_of(kind), 4, "fp32", None, 0).predict(batch)}
    assert len(ours) == batch.sequences
    for sample in samples(batch):
        asked = {name: x for name, x in read_by_theirs(sample, config).items() if name.endswith("_ids")}
        for theirs in others:
            with torch.no_grad():
                alone = theirs.eval()(**asked)
            for name, logits in ours[int(sample["feature_id"])].items():
                np.testing.assert_allclose(logits, alone[name][0].flatten().numpy(), rtol=1e-5, atol=1e-5)


def require_same_weights(state, theirs):
    expected = theirs.state_dict()
    for name, ours in state.items():
        torch.testing.assert_close(ours, expected[name], rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def count_labels(sample):
    return int((sample["labels"] != -100).sum()) if "labels" in sample else 1


def mean_loss(theirs, every):
    """The mean over all labels of the losses of samples."""
    counts = [count_labels(sample) for sample in every]
    return sum(theirs(**x).loss * (n / sum(counts)) for x, n in zip(every, counts, strict=True) if n)


def step(optimizer, theirs, every):
    """One update of their model by the mean loss, which is returned."""
    optimizer.zero_grad()
    loss = mean_loss(theirs, every)
    loss.backward()
    optimizer.step()
    return loss.item()


def require_same_updates(model, kind, batch, config, theirs):
    """Three updates have the losses and end with the weights of torch's AdamW over their model."""
    optimizer = optimizer_config(learning_rate=RATE, weight_decay=DECAY, eps=EPS)
    runtime = TorchRuntime(model, head_of(kind), 4, "fp32", optimizer, seed=0)
    groups = [
        {"params": [p for p in theirs.parameters() if is_exempt(p) is exempt], "weight_decay": decay}
        for exempt, decay in ((False, DECAY), (True, 0.0))
    ]
    stepper = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    every = [read_by_theirs(sample, config) for sample in samples(batch)]
    for _ in range(3):
        expected = step(stepper, theirs.train(), every)
        assert runtime.train_step(batch, RATE).loss == pytest.approx(expected, rel=1e-5)
    require_same_weights(get_family(config.family).to_theirs(runtime.state_dict()), theirs)
