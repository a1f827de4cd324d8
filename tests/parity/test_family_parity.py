"""Every family next to transformers' own model: logits, updates, and folders in both directions."""

from pathlib import Path

import pytest
import torch
import transformers
from samples import (
    RATE,
    TASKS,
    build,
    configure_theirs,
    draw_theirs,
    import_theirs,
    load_theirs,
    make_batch,
    read_by_theirs,
    require_same_logits,
    require_same_updates,
    samples,
)
from tiny_jobs import labels_of

from ipu_model.models.families import get_family, list_families
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

HEADS = ["question_answering", "sequence_classification", "token_classification"]


def make_pair(family, kind, folder, **dropouts):
    """Their random model, and ours that was imported from its folder."""
    theirs = draw_theirs(configure_theirs(family, labels_of(kind), **dropouts), f"For{TASKS[kind]}")
    theirs.save_pretrained(folder / "theirs")
    return theirs, import_theirs(theirs, folder)


@pytest.mark.parametrize("kind", [*HEADS, "masked_lm"])
@pytest.mark.parametrize("family", list_families())
def test_folders_logits_and_three_updates_are_those_of_transformers(tmp_path, family, kind):
    theirs, imported = make_pair(family, kind, tmp_path)
    again = load_theirs(tmp_path / "ours", kind)
    assert type(again) is type(theirs)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    batch, model = make_batch(tmp_path / "rows", kind, imported.config), build(imported, kind)
    if kind != "masked_lm":
        require_same_logits(model, kind, batch, imported.config, theirs, again)
    require_same_updates(model, kind, batch, imported.config, theirs)


@pytest.mark.parametrize("rates", [(), (0.25, 0.375, 0.5)], ids=["none", "own"])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", list_families())
def test_a_head_drops_as_often_and_as_much_as_that_of_transformers(tmp_path, monkeypatch, family, kind, rates):
    of_head = dict(zip(("classifier_dropout", "seq_classif_dropout", "qa_dropout"), rates, strict=False))
    theirs, imported = make_pair(family, kind, tmp_path, **of_head)
    batch, expected, ours = make_batch(tmp_path / "rows", kind, imported.config), [], []
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Dropout) and not name.startswith(f"{theirs.base_model_prefix}."):
            module.register_forward_hook(lambda module, *_: expected.append(module.p))
    theirs.train()(**read_by_theirs(next(samples(batch)), imported.config))
    place = "heads.sequence_classification" if kind.startswith("sequence") else "models.head"
    monkeypatch.setattr(f"ipu_model.{place}.drop", lambda values, keep, rate: ours.append(rate) or values)
    TorchRuntime(build(imported, kind), kind, 12, "fp32", optimizer_config(), 0).train_step(batch, RATE)
    assert [rate for rate in ours if rate] == [rate for rate in expected if rate]
    assert bool(expected) == (kind != "question_answering" or family in ("distilbert", "modernbert"))
    again = get_family(family).write_values(imported.config)
    assert {name: rate for name, rate in of_head.items() if again.get(name, rate) != rate} == {}


def test_a_head_without_a_rate_in_config_json_has_the_default_of_its_family():
    fields, default = get_family("distilbert").read_fields({"vocab_size": 60}), transformers.DistilBertConfig()
    assert fields["sequence_dropout"] == default.seq_classif_dropout
    assert fields["span_dropout"] == default.qa_dropout
    assert "sequence_dropout" not in get_family("bert").read_fields({"classifier_dropout": None})


def test_the_table_of_documents_has_every_family_and_what_it_reads():
    lines = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip(" `.") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    types, table = {0: "none", 1: "one", 2: "two for pairs"}, []
    for name in list_families():
        family = get_family(name)
        positions = "rotary" if family.rotary else "after the pad id" if family.offset_positions else "from 0"
        table.append([name, family.prefix, types[family.pair_types], positions])
    assert rows[: len(table)] == table
