"""Validation in several processes and on a cluster: the same results, down to the examples of failures."""

from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.params.schema import load_params
from tasks.stage import cluster
from tasks.validation import near_duplicates, text_features
from tasks.validation import validate as validating
from tasks.validation.checks import MAX_EXAMPLES
from tasks.validation.pretraining_checks import SCHEMA, CorpusData
from tasks.validation.validate import validate_data
from tasks.validation.validators import GxValidator, LimitValidator
from tests.places import ROOT
from tests.tasks.validation.validation_data import (
    failed_checks,
    pretrain_data,
    row_columns,
    write_rows,
    write_tokenizer,
)

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
LIMITS = load_params(ROOT / "params.yaml").validate_.model_copy(update={"max_control_share": 0.001})
GROUP = 50
T = TypeVar("T")


@pytest.fixture(scope="module")
def address():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        yield local.scheduler_address


@pytest.fixture
def many_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(text_features, "PART_BYTES", 1)  # a part for each row group
    monkeypatch.setattr(validating, "LEAST_BYTES", 2)
    monkeypatch.chdir(tmp_path)


def judge_everywhere(judge, address, monkeypatch):
    """What is result with one and three processes and on a cluster, which must be equal."""
    results = []
    for workers, place in (("1", ""), ("3", ""), ("1", address)):
        monkeypatch.setenv("PODIUM_WORKERS", workers)
        monkeypatch.setenv(cluster.CLUSTER, place)
        results.append(judge())
    assert results == [results[0]] * 3
    return results[0]


def validate_everywhere(data, address, monkeypatch):
    validator = GxValidator() if data.is_user_data else LimitValidator()
    return judge_everywhere(lambda: validate_data(data, validator), address, monkeypatch)


def write_damaged_corpus(folder):
    """Two files of six and five row groups; the first and the last document are invalid, and 30 between them."""
    documents = 11 * GROUP
    ids = [f"doc-{i}" for i in range(documents)]
    texts = [f"The town number {i} lies by a river, and was founded long ago." for i in range(documents)]
    ids[-1], ids[0] = "doc-7", ""
    texts[0] = texts[-2] = " "
    texts[3], texts[-3], texts[-4] = "\x00" * 60, "\x01" * 70, "\x02" * 70
    for i in range(200, 230):
        texts[i] = ""
    table = pa.table({"document_id": ids, "title": [""] * documents, "text": texts}, schema=SCHEMA)
    folder.mkdir()
    pq.write_table(table.slice(0, 6 * GROUP), folder / "part-00000.parquet", row_group_size=GROUP)
    pq.write_table(table.slice(6 * GROUP), folder / "part-00001.parquet", row_group_size=GROUP)
    return CorpusData(folder, LIMITS)


@pytest.mark.soak
@pytest.mark.usefixtures("many_parts")
def test_a_corpus_with_failures_in_several_parts(address, monkeypatch):
    data = write_damaged_corpus(Path("corpus"))
    assert [(part.name[-9:-8], part.first, part.before) for part in data.parts()][5:8] == [
        ("0", 250, 0),
        ("1", 0, 300),
        ("1", 50, 300),
    ]
    result = validate_everywhere(data, address, monkeypatch)
    assert failed_checks(result.verdict) == ["ids_unique", "control_characters", "ids_present", "texts_present"]
    checks = {outcome.check.name: outcome for outcome in result.outcomes}
    assert checks["ids_unique"].examples == ("doc-7 (2 times)",)
    assert checks["ids_present"].examples == ("document number 0",)
    assert checks["control_characters"].examples[:2] == tuple(f"doc-{i}: 70 control characters" for i in (546, 547))
    texts = checks["texts_present"].counts
    assert (texts.failed, texts.total, len(texts.labels)) == (32, 11 * GROUP, MAX_EXAMPLES)
    assert list(texts.labels[:2]) == ["document number 0", "doc-200"]
    assert result.numbers["documents"] == 11 * GROUP


@pytest.mark.usefixtures("many_parts")
def test_rows_with_failures_in_the_first_and_last_file(address, monkeypatch):
    tokenizer = write_tokenizer(Path("tokenizer"))
    columns = row_columns("pretrain", 12)
    columns["input_ids"][[0, 3, 11], 0] = 9
    folder = write_rows(Path("phase1"), "pretrain", columns, tokenizer)
    data = pretrain_data(folder, tokenizer)
    assert [part.first for part in data.parts()] == [0, 11]
    result = validate_everywhere(data, address, monkeypatch)
    failed = next(outcome for outcome in result.outcomes if not outcome.ok)
    assert (failed.check.name, failed.examples) == ("first_tokens", ("row 0", "row 3", "row 11"))
    assert result.numbers["rows"] == 12


@pytest.mark.usefixtures("many_parts")
def test_near_duplicates_of_equal_similarity_in_several_parts(address, monkeypatch):
    monkeypatch.setattr(near_duplicates, "LEAST_BYTES", 2)
    dev = [" ".join(f"{word}{text}{number}" for number in range(40)) for text, word in enumerate(("river", "hill"))]
    texts = [f"Town {i} lies by a lake, and its people built the bridge." for i in range(60)]
    texts[5], texts[25], texts[45] = f"{dev[0]} and more", dev[0], dev[0]
    texts[9], texts[59] = dev[1][30:], dev[1][20:]
    table = pa.table({"document_id": [f"doc-{i}" for i in range(60)], "title": [""] * 60, "text": texts})
    Path("corpus").mkdir()
    pq.write_table(table, "corpus/part-00000.parquet", row_group_size=10)
    splits = {"train": [texts[0]], "dev": dev}
    read = lambda split: iter([splits[split]])  # noqa: E731 - not picklable, and need not be
    find = near_duplicates.find_near_duplicates
    report = judge_everywhere(
        lambda: find(read, "train", ["dev"], Path("corpus"), 0.8, "example"), address, monkeypatch
    )
    text = report.sources[1]
    assert [pair.other for pair in text.pairs] == ["document doc-5", "document doc-59"]
    assert text.pairs[0].similarity == 1.0
    assert [path.name for path in Path().iterdir()] == ["corpus"]
