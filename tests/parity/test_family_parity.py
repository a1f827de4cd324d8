"""Every family next to transformers' own model: logits, updates, and folders in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from samples import samples
from tiny_jobs import LABELS, TINY, labels_of, make_columns, write_rows

from ipu_model.core.errors import ConfigError
from ipu_model.models.families import configure_model, get_family, list_families
from ipu_model.models.import_model import import_model
from ipu_model.models.model_folder import ModelFolder, missing_parameters, read_model
from ipu_model.models.modeling import build_model, is_exempt
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime
from tasks.models.model_folders import packs_rows
from tests.optimizers import optimizer_config

HEADS = {
    "question_answering": ("QuestionAnswering", ("start_logits", "end_logits")),
    "sequence_classification": ("SequenceClassification", ("logits",)),
    "token_classification": ("TokenClassification", ("logits",)),
}
TASKS = {kind: task for kind, (task, _) in HEADS.items()} | {"masked_lm": "MaskedLM"}
ROWS, RATE, DECAY = 12, 1e-3, 0.1
EPS = 1e-4
"""Far above the gradients that are zero but for rounding, as those of key biases are; Adam would scale them up."""


def their_config(family: str, labels: int, **dropouts: float) -> Any:
    sizes = {name: getattr(TINY, name) for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size")}
    rates = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.5}
    config = configure_model(60, family, max_positions=24, **sizes, **rates)
    values = get_family(family).write_values(config)
    values.update({"embedding_size": 8} if "embedding_size" in values else {})
    values.update({"local_attention": 8} if "local_attention" in values else {})
    values.update({"qa_dropout": 0.0, "seq_classif_dropout": 0.0, **dropouts})
    names = {"id2label": {str(number): name for number, name in enumerate(LABELS)}} if labels else {}
    return transformers.AutoConfig.for_model(**values, **names)


def make_pair(family: str, task: str, kind: str, folder: Path, **dropouts: float) -> tuple[Any, ModelFolder]:
    """Their random model, and ours that was imported from its folder."""
    torch.manual_seed(5)
    config = their_config(family, labels_of(kind), **dropouts)
    theirs = getattr(transformers, f"AutoModelFor{task}").from_config(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.3)
    theirs.save_pretrained(folder / "theirs")
    (folder / "ours").mkdir()
    report = import_model(folder / "theirs", folder / "ours", "t" * 64)
    assert (report.architecture, report.left_out) == (type(theirs).__name__, [])
    return theirs, read_model(folder / "ours")


def build(found: ModelFolder, kind: str) -> torch.nn.Module:
    model = build_model(kind, found.config, labels_of(kind))
    assert missing_parameters(found, model.state_dict()) == []
    model.load_state_dict({name: found.state[name] for name in model.state_dict()})
    return model


def make_batch(folder: Path, kind: str, found: ModelFolder) -> Batch:
    columns = make_columns(kind, ROWS, seed=3)
    if found.config.type_vocab_size == 1:
        columns["token_type_ids"][:] = 0
    write_rows(folder / "rows", kind, columns)
    return RowFolder(folder / "rows", kind, found.config, labels_of(kind)).take(np.arange(ROWS))


def inputs(sample: dict[str, torch.Tensor], found: ModelFolder) -> dict[str, torch.Tensor]:
    """What their model reads of a sample, without and with its labels."""
    unread = {"feature_id"} if found.config.type_vocab_size else {"feature_id", "token_type_ids"}
    return {name: x for name, x in sample.items() if name not in unread}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", list_families())
def test_packed_rows_give_the_logits_of_transformers(tmp_path: Path, family: str, kind: str) -> None:
    task, names = HEADS[kind]
    theirs, found = make_pair(family, task, kind, tmp_path)
    again = getattr(transformers, f"AutoModelFor{task}").from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(again[1][key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(again[0]) is type(theirs)
    batch = make_batch(tmp_path, kind, found)
    runtime = TorchRuntime(build(found, kind), kind, 4, "fp32", None, 0)
    logits = {x.feature_id: x.columns for x in runtime.predict(batch)}
    for sample in samples(batch):
        for model in (theirs, again[0].eval()):
            with torch.no_grad():
                alone = model(**{k: x for k, x in inputs(sample, found).items() if k.endswith("_ids")})
            for name in names:
                expected = alone[name][0].flatten().numpy()
                ours = logits[int(sample["feature_id"])][name]
                np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    assert len(logits) == batch.sequences


@pytest.mark.parametrize("rates", [(), (0.25, 0.375, 0.5)], ids=["none", "own"])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", list_families())
def test_a_head_drops_as_often_and_as_much_as_that_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str, rates: tuple[float, ...]
) -> None:
    own = dict(zip(("classifier_dropout", "seq_classif_dropout", "qa_dropout"), rates, strict=False))
    theirs, found = make_pair(family, HEADS[kind][0], kind, tmp_path, **own)
    batch, expected, ours = make_batch(tmp_path, kind, found), [], []
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Dropout) and not name.startswith(f"{theirs.base_model_prefix}."):
            module.register_forward_hook(lambda module, *_: expected.append(module.p))
    theirs.train()(**inputs(next(iter(samples(batch))), found))
    place = "heads.sequence_classification" if kind.startswith("sequence") else "models.head"
    monkeypatch.setattr(f"ipu_model.{place}.drop", lambda values, keep, rate: ours.append(rate) or values)
    TorchRuntime(build(found, kind), kind, ROWS, "fp32", optimizer_config(), 0).train_step(batch, RATE)
    assert [rate for rate in ours if rate] == [rate for rate in expected if rate]
    assert bool(expected) == (kind != "question_answering" or family in ("distilbert", "modernbert"))
    again = get_family(family).write_values(found.config)
    assert {name: rate for name, rate in own.items() if again.get(name, rate) != rate} == {}


def test_a_head_without_a_rate_in_config_json_has_the_default_of_its_family() -> None:
    fields, default = get_family("distilbert").read_fields({"vocab_size": 60}), transformers.DistilBertConfig()
    assert fields["sequence_dropout"] == default.seq_classif_dropout
    assert fields["span_dropout"] == default.qa_dropout
    assert "sequence_dropout" not in get_family("bert").read_fields({"classifier_dropout": None})


def in_turn() -> list[Any]:
    """Every family with every kind; `make test` takes one kind of each family."""
    pairs = [
        (family, kind, (i - j) % len(TASKS)) for i, family in enumerate(list_families()) for j, kind in enumerate(TASKS)
    ]
    return [pytest.param(family, kind, marks=[pytest.mark.soak] if apart else []) for family, kind, apart in pairs]


@pytest.mark.parametrize(("family", "kind"), in_turn())
def test_three_updates_end_with_the_weights_of_transformers(tmp_path: Path, family: str, kind: str) -> None:
    theirs, found = make_pair(family, TASKS[kind], kind, tmp_path)
    model, batch = build(found, kind), make_batch(tmp_path, kind, found)
    optimizer = optimizer_config(learning_rate=RATE, weight_decay=DECAY, eps=EPS)
    runtime = TorchRuntime(model, kind, 4, "fp32", optimizer, seed=0)
    groups = [
        {"params": [p for p in theirs.parameters() if is_exempt(p) is exempt], "weight_decay": decay}
        for exempt, decay in ((False, DECAY), (True, 0.0))
    ]
    stepper = torch.optim.AdamW(groups, lr=RATE, eps=EPS)
    for _ in range(3):
        losses, counts = [], []
        for sample in samples(batch):
            losses.append(theirs.train()(**inputs(sample, found)).loss)
            counts.append(int((sample["labels"] != -100).sum()) if "labels" in sample else 1)
        expected = sum(loss * count for loss, count in zip(losses, counts, strict=True) if count) / sum(counts)
        stepper.zero_grad()
        expected.backward()
        stepper.step()
        assert runtime.train_step(batch, RATE).loss == pytest.approx(expected.item(), rel=1e-5)
    expected = theirs.state_dict()
    for name, ours in get_family(family).to_theirs(runtime.state_dict()).items():
        torch.testing.assert_close(ours, expected[name], rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("family", list_families())
def test_a_masked_language_model_goes_in_and_out_bit_for_bit(tmp_path: Path, family: str) -> None:
    theirs, found = make_pair(family, "MaskedLM", "pretrain", tmp_path)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours")
    for name, weight in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    transform = "bert.pooler" if get_family(family).rotary else "cls.predictions.transform"
    assert f"{transform}.dense.weight" in found.state


def test_the_table_of_documents_has_every_family_and_what_it_reads() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `.") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    types = {0: "none", 1: "one", 2: "two for pairs"}
    described = [(name, get_family(name)) for name in list_families()]
    positions = ["rotary" if f.rotary else "after the pad id" if f.offset_positions else "from 0" for _, f in described]
    table = [[n, f.prefix, types[f.pair_types], p] for (n, f), p in zip(described, positions, strict=True)]
    assert rows[: len(table)] == table


def test_the_rows_on_other_encoders_are_what_both_kinds_of_families_do() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").partition("## Other")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["", "families above", "other encoders"]
    documented = {label: cells for label, *cells in rows[2:]}

    def is_refused(family: str, runtime: str, pretrains: bool) -> bool:
        try:
            get_family(family).check(runtime, pretrains)
        except ConfigError:
            return True
        return False

    for families, column in ((list_families(), 0), (["deberta-v2", "mpnet", "albert"], 1)):
        for family in families:
            runtimes = [f"`{one}`" for one in ("cpu", "cuda", "ipu") if not is_refused(family, one, False)]
            assert documented["runtime"][column] == ", ".join(runtimes)
            assert (documented["pre-training"][column] == "no") == is_refused(family, "cpu", True)
            rows_hold = "several sequences each" if packs_rows(family) else "one sequence each"
            assert documented["rows"][column].startswith(rows_hold)
            padded = "sequences padded in groups of similar length" in str(get_family(family).describe())
            assert documented["padding in computation"][column].endswith("group of similar length") == padded
            others = "torch and transformers" if padded else "torch"
            assert documented["Python of the device"][column].partition(" (")[0] == others
