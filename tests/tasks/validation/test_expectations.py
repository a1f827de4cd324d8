"""What other users of Great Expectations get: suites that it loads."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ipu_model.core.files import write_json
from tasks.params.schema import load_params
from tasks.validation.checks import CheckCounts, DataCheck
from tasks.validation.pretraining_checks import CorpusData
from tasks.validation.validate import validate_data
from tasks.validation.validators import CheckCrashed, LimitValidator, load_gx, make_suite
from tests.places import ROOT
from tests.tasks.validation.validation_data import corpus_columns, gx, write_corpus

LIMITS = load_params(ROOT / "params.yaml").validate_.model_copy(
    update={"min_documents": 12, "max_control_share": 0.01, "max_document_characters": 1000}
)


def found_of(folder, columns):
    return validate_data(CorpusData(write_corpus(folder, columns), LIMITS), gx())


def bad_columns():
    columns = corpus_columns()
    columns["text"][1] = ""
    columns["text"][3], columns["document_id"][3] = None, "<script>alert(1)</script>"
    columns["text"][7] = "x" * 1234
    return columns


def test_great_expectations_loads_a_suite_from_its_store_and_finds_the_same_with_it(tmp_path):
    found = found_of(tmp_path / "data", bad_columns())
    write_json(tmp_path / "project/gx/expectations/corpus.json", make_suite("corpus", found.checks))
    context = load_gx().get_context(mode="file", project_root_dir=tmp_path / "project")
    suite = context.suites.get("corpus")
    assert [one.meta["check"] for one in suite.expectations] == [check.name for check in found.checks]
    assert all(one.description and one.notes and one.meta["column"] for one in suite.expectations)
    asset = context.data_sources.add_pandas("features").add_dataframe_asset("features")
    table = pd.DataFrame({check.name: [check.minimum or 0, check.minimum or 0] for check in found.checks})
    table.loc[1, "texts_present"] = 1
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": table})
    result = batch.validate(suite)
    failed = [one.expectation_config.meta["check"] for one in result.results if not one.success]
    assert failed == ["texts_present"]


def test_a_suite_requires_what_cannot_be_checked_yet_as_well(tmp_path):
    columns = corpus_columns()
    sound = found_of(tmp_path / "sound", columns)
    del columns["title"]
    schema = pa.schema([("document_id", pa.string()), ("text", pa.string())])
    broken = validate_data(CorpusData(write_corpus(tmp_path / "broken", columns, schema), LIMITS), gx())
    assert broken.verdict["not_checked"]
    assert [check.name for check in broken.checks] == [check.name for check in sound.checks]


def test_the_limits_alone_judge_as_great_expectations_does():
    limits = [(None, None), (1, None), (None, 2), (0.5, 2)]
    checks = [DataCheck(f"c{number}", "text", "something", "nothing", *pair) for number, pair in enumerate(limits)]
    values = np.array([-1, 0, 1, 2, 3, *range(40)])
    frame = {check.name: values for check in checks}
    assert LimitValidator().validate(checks, frame) == gx().validate(checks, frame)
    assert [one.failed for one in gx().validate(checks, frame).values()] == [42, 3, 38, 41]


def test_what_great_expectations_drops_or_counts_otherwise_is_our_defect_and_no_verdict(monkeypatch):
    checks = [DataCheck(name, "text", "at most 9", "nothing", maximum=9) for name in ("size", "age")]
    with pytest.raises(CheckCrashed, match="size"):
        gx().confirm(checks[:1], {"age": np.array([0, 0])}, {})
    with pytest.raises(CheckCrashed, match="1 of them without a value"):
        gx().validate(checks[:1], {"size": np.array([0.0, np.nan])})
    monkeypatch.setattr(LimitValidator, "validate", lambda self, checks, frame, label: {"size": CheckCounts(0, 2)})
    with pytest.raises(CheckCrashed, match="size differently"):
        gx().validate(checks[:1], {"size": np.array([1, 10])})
