"""What other users of Great Expectations get: suites that it loads."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ipu_model.core.files import write_json
from tasks.validation.checks import CheckCounts, DataCheck
from tasks.validation.pretraining_checks import CorpusData
from tasks.validation.validate import validate_data
from tasks.validation.validators import CheckCrashed, LimitValidator, load_gx, make_suite
from tests.tasks.validation.validation_data import LIMITS, corpus_columns, gx, write_corpus


def test_great_expectations_loads_a_suite_from_its_store_with_what_cannot_be_checked_yet(tmp_path):
    columns = corpus_columns()
    checks = validate_data(CorpusData(write_corpus(tmp_path / "sound", columns), LIMITS), gx()).checks
    del columns["title"]
    schema = pa.schema([("document_id", pa.string()), ("text", pa.string())])
    broken = validate_data(CorpusData(write_corpus(tmp_path / "broken", columns, schema), LIMITS), gx())
    assert broken.verdict["not_checked"]
    assert [check.name for check in broken.checks] == [check.name for check in checks]

    write_json(tmp_path / "project/gx/expectations/corpus.json", make_suite("corpus", checks))
    context = load_gx().get_context(mode="file", project_root_dir=tmp_path / "project")
    suite = context.suites.get("corpus")
    assert [expectation.meta["check"] for expectation in suite.expectations] == [check.name for check in checks]
    assert all(item.description and item.notes and item.meta["column"] for item in suite.expectations)
    asset = context.data_sources.add_pandas("features").add_dataframe_asset("features")
    table = pd.DataFrame({check.name: [check.minimum or 0, check.minimum or 0] for check in checks})
    table.loc[1, "texts_present"] = 1
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": table})
    results = batch.validate(suite).results
    failed = [result.expectation_config.meta["check"] for result in results if not result.success]
    assert failed == ["texts_present"]


def test_the_limits_alone_judge_as_great_expectations_does():
    limits = [(None, None), (1, None), (None, 2), (0.5, 2)]
    checks = [DataCheck(f"c{number}", "text", "something", "nothing", *pair) for number, pair in enumerate(limits)]
    frame = dict.fromkeys((check.name for check in checks), np.array([-1, 0, 1, 2, 3, *range(40)]))
    counts = gx().validate(checks, frame)
    assert LimitValidator().validate(checks, frame) == counts
    assert [count.failed for count in counts.values()] == [42, 3, 38, 41]


def test_what_great_expectations_drops_or_counts_otherwise_is_our_defect_and_no_verdict(monkeypatch):
    checks = [DataCheck("size", "text", "at most 9", "nothing", maximum=9)]
    with pytest.raises(CheckCrashed, match="size"):
        gx().confirm(checks, {"age": np.array([0, 0])}, {})
    with pytest.raises(CheckCrashed, match="without a value"):
        gx().validate(checks, {"size": np.array([0.0, np.nan])})
    monkeypatch.setattr(LimitValidator, "validate", lambda self, checks, frame, label: {"size": CheckCounts(0, 2)})
    with pytest.raises(CheckCrashed, match="size differently"):
        gx().validate(checks, {"size": np.array([1, 10])})
