"""A development set split off from training, and samples: by the seed alone, whole groups, in the order of the file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.records.splits import sample_examples, split_off_dev

KEYS = ("data.dev_fraction", "data.dev_path")
GROUPS = (("title", ("title",)), ("context", ("context",)))


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(path: Path) -> list[dict[str, object]]:
    return pq.read_table(path).to_pylist()


def titled(count: int) -> list[dict[str, object]]:
    return [{"title": f"t{number % 50}", "context": f"c{number}", "number": number} for number in range(count)]


def test_whole_titles_are_set_apart_and_nothing_is_lost(tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.parquet", titled(500)), tmp_path / "dev.parquet"
    split = split_off_dev(train, dev, GROUPS, 0.1, 3, KEYS)
    assert (split.grouping, split.examples, split.total) == ("title", 50, 500)
    ours, theirs = read(train), read(dev)
    assert len(theirs) == 50
    assert not {row["title"] for row in ours} & {row["title"] for row in theirs}
    numbers = [[row["number"] for row in part] for part in (ours, theirs)]
    assert sorted(numbers[0] + numbers[1]) == list(range(500))
    assert numbers == [sorted(part) for part in numbers]


def test_the_same_titles_are_chosen_however_the_file_is_ordered_and_others_by_another_seed(tmp_path: Path) -> None:
    chosen = []
    for rows, seed in ((titled(500), 3), (titled(500)[::-1], 3), (titled(500), 4)):
        train, dev = write(tmp_path / "train.parquet", rows), tmp_path / "dev.parquet"
        split_off_dev(train, dev, GROUPS, 0.1, seed, KEYS)
        chosen.append({row["title"] for row in read(dev)})
    assert chosen[0] == chosen[1] != chosen[2]


def test_contexts_stay_together_where_there_are_no_titles(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"title": "", "context": f"c{n % 10}", "number": n} for n in range(40)]
    train, dev = write(tmp_path / "train.parquet", rows), tmp_path / "dev.parquet"
    assert split_off_dev(train, dev, GROUPS, 0.2, 0, KEYS)[:2] == ("context", 8)
    assert len({row["context"] for row in read(dev)}) == 2


def test_examples_that_all_belong_together_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "train.parquet", [{"title": "", "context": "c"}] * 3)
    with pytest.raises(Exception, match=r"data\.dev_fraction=0\.1: .*same context.*data\.dev_path"):
        split_off_dev(train, tmp_path / "dev.parquet", GROUPS, 0.1, 0, KEYS)
    assert [path.name for path in tmp_path.iterdir()] == ["train.parquet"]


def test_a_sample_is_of_the_seed_in_order_and_all_where_the_limit_is_larger(tmp_path: Path) -> None:
    samples = []
    for seed in (0, 0, 1):
        path = write(tmp_path / "a.parquet", titled(10_000))
        assert sample_examples(path, 100, seed) == 10_000
        samples.append([row["number"] for row in read(path)])
    assert samples[0] == samples[1] == sorted(samples[0]) != samples[2]
    assert len(samples[0]) == 100
    assert 4000 < sum(map(int, samples[0])) / 100 < 6000, "any example has the same chance"
    before = (tmp_path / "a.parquet").read_bytes()
    assert sample_examples(tmp_path / "a.parquet", 100, 0) == 100
    assert (tmp_path / "a.parquet").read_bytes() == before
