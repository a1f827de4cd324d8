"""Rows made shard by shard: the same bytes in whatever order and however often a run is killed, none made twice."""

import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import pytest

from tasks.pretraining.rows import row_builder
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.pretraining.rows.row_builder import ShardBuilder
from tasks.records import shards as shards_module
from tasks.records.shards import plan_shards, read_texts
from tests.places import ROOT
from tests.source_files import import_closure
from tests.tasks.pretraining.row_inputs import pretrain_params, random_texts, word_tokenizer, write_corpus

SMALL = 4000
"""Bytes of a shard here; the corpus has six of them."""
PARAMS = {"held_out_fraction": 0.1, "duplicates": 2}
KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.tasks.pretraining import test_row_shards as tests
    make, tests.shards_module.SHARD_BYTES = tests.row_builder.make_chunk_rows, tests.SMALL
    def make_until_the_fourth(settings, chunk):
        if chunk.shard == 3 and chunk.part == "held-out":  # its other rows are written
            os.kill(os.getpid(), signal.SIGKILL)
        return make(settings, chunk)
    tests.row_builder.make_chunk_rows = make_until_the_fourth
    tests.make(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Corpus, tokenizer, and `rows` of it that no one disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    word_tokenizer(folder / "tokenizer")
    write_corpus(folder / "corpus", random_texts(200), rows_per_group=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "SHARD_BYTES", SMALL)
        make(folder, folder)
    return folder


@pytest.fixture(scope="module")
def killed(whole, tmp_path_factory):
    """What a run that was killed in its fourth shard leaves."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(whole), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in folder.iterdir()] == ["work"]
    return folder


@pytest.fixture
def made(monkeypatch):
    """Chunks made per shard from now on, in small shards."""
    counts = Counter()
    original = row_builder.make_chunk_rows

    def counting(settings, chunk):
        counts[chunk.shard] += 1
        return original(settings, chunk)

    monkeypatch.setattr(row_builder, "make_chunk_rows", counting)
    monkeypatch.setattr(shards_module, "SHARD_BYTES", SMALL)
    return counts


def make(whole, folder, **changes):
    params, places = pretrain_params(**PARAMS | changes), (whole / "corpus", whole / "tokenizer", folder / "rows")
    write_pretrain_rows(params, "phase1", *places, 1, folder / "work")


def bytes_under(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_killed_in_a_shard_keeps_the_finished_ones_and_ends_with_the_same_bytes(whole, killed, tmp_path, made):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    kept = {path.stat().st_ino for path in (tmp_path / "work").glob("*/shard-?????/rows/*.arrow")}
    assert len(kept) == 3
    make(whole, tmp_path)
    assert sorted(made) == [3, 4, 5], "finished shards are not made again"
    assert kept < {path.stat().st_ino for path in (tmp_path / "rows").glob("*.arrow")}, "they are taken as they are"
    assert bytes_under(tmp_path / "rows") == bytes_under(whole / "rows")
    assert not (tmp_path / "work").exists(), "what is done leaves no shards"


def test_a_damaged_shard_is_named_and_made_again(whole, killed, tmp_path, made, caplog):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    (damaged,) = (tmp_path / "work").glob("*/shard-00001")
    (file,) = (damaged / "rows").glob("*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    make(whole, tmp_path)
    assert f"{damaged} is damaged" in caplog.text
    assert sorted(made) == [1, 3, 4, 5]
    assert bytes_under(tmp_path / "rows") == bytes_under(whole / "rows")
    made.clear()
    make(whole, tmp_path, seed=4)
    assert sorted(made) == list(range(6)), "of other parameters"
    assert bytes_under(tmp_path / "rows") != bytes_under(whole / "rows")


def test_shards_in_any_order_are_the_same_rows(whole, tmp_path, made):
    making = ShardBuilder(pretrain_params(**PARAMS), "phase1", whole / "corpus", whole / "tokenizer", tmp_path / "work")
    whole_corpus = making.shards
    for making.shards in (whole_corpus[4:], whole_corpus[1::-1]):
        making.make(1)
    make(whole, tmp_path)
    assert made[4] == made[0], "each once"
    assert bytes_under(tmp_path / "rows") == bytes_under(whole / "rows")


def test_every_document_is_in_one_shard_and_none_is_much_smaller_than_the_others(whole, monkeypatch):
    monkeypatch.setattr(shards_module, "SHARD_BYTES", SMALL)
    shards = plan_shards(sorted((whole / "corpus").glob("*.parquet")))
    assert [text for shard in shards for text in read_texts(shard)] == random_texts(200)
    assert [shard.number for shard in shards] == list(range(6))
    assert min(shard.bytes for shard in shards) >= SMALL
    assert max(shard.bytes for shard in shards) < 2 * SMALL + max(shard.bytes / len(shard.groups) for shard in shards)
    monkeypatch.undo()
    assert len(plan_shards(sorted((whole / "corpus").glob("*.parquet")))) == 1


def test_what_decides_the_rows_names_every_package_that_makes_them():
    """Besides the frame, which makes nothing, and what reads the corpus, whose content decides as well."""
    makers = ("pair_rows", "row_builder")
    closure = set().union(*(import_closure(ROOT / f"tasks/pretraining/rows/{name}.py") for name in makers))
    others = (
        "tasks/stage/",
        "tasks/params/",
        "tasks/plan/",
        "tasks/records/",
        "tasks/__init__.py",
        "tasks/pretraining/__init__.py",
        "ipu_model/",
    )
    needed = {path.rpartition("/")[0] for path in closure if not path.startswith(others)}
    assert needed | {"ipu_model/rows", "ipu_model/row_kinds"} == {*row_builder.ROW_SOURCES}
