"""Classes of a data set, which it keeps as numbers, come by their names."""

from pathlib import Path

import datasets
import pytest

from tasks.records.hub_inputs import name_classes, open_dataset

WORDS = datasets.List(datasets.Value("string"))
ROWS = {"tokens": [["Ada", "left"], []], "tags": [[1, 0], []]}


@pytest.mark.parametrize("named", [True, False])
def test_lists_of_class_numbers_come_as_names_where_the_features_state_them(tmp_path: Path, named: bool) -> None:
    kind = datasets.ClassLabel(names=["O", "B-person"]) if named else datasets.Value("int64")
    features = datasets.Features({"tokens": WORDS, "tags": datasets.List(kind)})
    datasets.Dataset.from_dict(ROWS, features=features).to_parquet(str(tmp_path / "train.parquet"))
    rows = [row for _, row in open_dataset("corpus", str(tmp_path), None, "train", None, class_names=True)]
    assert [row["tags"] for row in rows] == ([["B-person", "O"], []] if named else [[1, 0], []])
    assert list(open_dataset("corpus", str(tmp_path), None, "train", None))[0][1]["tags"] == [1, 0]


def test_what_is_no_number_of_a_class_stays_as_it_is() -> None:
    assert name_classes([0, 2, -1, True, None, "O"], ["a", "b"]) == ["a", 2, None, True, None, "O"]
    assert name_classes(3, ["a"]) == 3
