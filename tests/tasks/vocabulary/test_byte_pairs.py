"""A trained byte-level BPE vocabulary: the same bytes everywhere, and the ids of transformers in rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ipu_model.core.files import sha256_of
from tasks.corpus import world
from tasks.params.schema import TokenizerParams, validate_params
from tasks.pretraining.rows.pair_rows import split_sentences
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tasks.stage.errors import InputError, ParamsError
from tasks.vocabulary.encoding import encode, load_tokenizer
from tasks.vocabulary.tokenizer import make_tokenizer
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS
from tests.places import ROOT
from tests.plans import values_with
from tests.tasks.pretraining.row_inputs import pretrain_params, read_rows, unmask, write_corpus

TEXTS = [document.text for document in world.make_documents(8, "corpus", 150)]
OTHERS = ["Naïve CAFÉ: 中文 한국어 🙂", "tab\tand  two blanks", " a blank first", "[SEP] is [MASK] text", "x" * 300]


def params(**values: Any) -> TokenizerParams:
    return TokenizerParams(**{"kind": "bpe", "vocabulary_size": 700, "lowercase": False, **values})


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus", [*TEXTS, *OTHERS[:3]], 40)


@pytest.fixture(scope="module")
def folder(corpus: Path) -> Path:
    made = corpus.parent / "made"
    make_tokenizer(params(), 512, corpus, made)
    return made


MAKE = """
import sys
from pathlib import Path
from tests.tasks.vocabulary.test_byte_pairs import params
from tasks.vocabulary.tokenizer import make_tokenizer
make_tokenizer(params(), 512, Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize(("hash_seed", "threads"), [("0", "1"), ("2", "5")])
def test_the_files_are_the_same_bytes_in_every_process_with_any_number_of_threads(
    corpus: Path, folder: Path, tmp_path: Path, hash_seed: str, threads: str
) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
    command = [sys.executable, "-c", MAKE, str(corpus), str(tmp_path / "made")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    assert [sha256_of(tmp_path / "made" / name) for name in names] == [sha256_of(folder / name) for name in names]


@pytest.mark.parametrize("lowercase", [False, True])
def test_auto_tokenizer_gives_the_ids_of_rows_and_knows_every_text(
    corpus: Path, tmp_path: Path, lowercase: bool
) -> None:
    make_tokenizer(params(lowercase=lowercase), 512, corpus, tmp_path / "made")
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "made"), load_tokenizer(tmp_path / "made")
    assert theirs.is_fast
    assert len(theirs) == 700
    assert theirs.model_max_length == 512
    assert theirs.convert_ids_to_tokens(list(range(5))) == list(SPECIAL_TOKENS)
    assert set(theirs("a", "b")) == {"input_ids", "attention_mask"}, "ModernBERT takes no token types"
    for text in [*TEXTS[:20], *OTHERS]:
        ids = encode(ours, [text]).token_ids.tolist()
        if "[" not in text:  # in ours, no text can forge the structure of a sequence
            assert theirs(text).input_ids == [2, *ids, 3]
            assert theirs.decode(ids, clean_up_tokenization_spaces=False) == (text.lower() if lowercase else text)
        assert not {*range(5)} & set(ids)


def test_rows_have_whole_documents_as_transformers_reads_them(corpus: Path, folder: Path, tmp_path: Path) -> None:
    rows = pretrain_params(512, next_sentence=False, short_sequence_probability=0.0, max_sequences_per_row=1)
    write_pretrain_rows(rows, "phase1", corpus, folder, tmp_path / "rows", 1)
    theirs, columns = AutoTokenizer.from_pretrained(folder), read_rows(tmp_path / "rows")
    expected = sorted(theirs(" ".join(split_sentences(text))).input_ids for text in [*TEXTS, *OTHERS[:3]])
    pairs = zip(unmask(columns), columns["sequence_ids"], strict=True)
    assert sorted(ids[numbers == 1].tolist() for ids, numbers in pairs) == expected


def test_a_vocabulary_that_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no characters"):
        make_tokenizer(params(), 512, write_corpus(tmp_path / "corpus", ["", " "]), tmp_path / "made")
    for values, message in (
        (["pretrain_rows.next_sentence=false", "tokenizer.vocabulary_size=200"], "at least 300"),
        (["tokenizer.source=file"], "kind bpe is trained"),
        ([], "the same token type"),
    ):
        with pytest.raises(ParamsError, match=message):
            validate_params(values_with("tokenizer.kind=bpe", *values))
