from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tasks.downstream.packed_rows import EncodedSequences
from tasks.downstream.squad.rows import find_answers, make_features
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.downstream.squad.question_files import windows
from tests.tasks.pretraining.row_inputs import (
    CLS,
    SEP,
    bert_tokenizer,
    random_texts,
    squad_questions,
    tokenizer_of,
    word_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(word_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def tokens_of(features: EncodedSequences, feature: int) -> list[int]:
    stop = int(features.lengths[: feature + 1].sum())
    return features.token_ids[stop - int(features.lengths[feature]) : stop].tolist()


def offsets_of(features: EncodedSequences, feature: int) -> np.ndarray:
    """int32[context tokens, 2] of one feature."""
    return features.features["offsets"][feature].values.to_numpy().reshape(-1, 2)


def test_one_question_and_one_context_by_hand(tokenizer: Tokenizer) -> None:
    features = make_features(tokenizer, ["Ba de?"], ["Go ka. Lu me ni."], 12, 2, 10)
    ids = {word: tokenizer.token_to_id(word) for word in ("ba", "de", "?", "go", "ka", ".", "lu", "me", "ni")}
    question = [CLS, ids["ba"], ids["de"], ids["?"], SEP]
    context = [ids[word] for word in ("go", "ka", ".", "lu", "me", "ni", ".")]
    # 12 - 3 question tokens - 3 special tokens leave windows of 6, moving on by 4
    assert [tokens_of(features, n) for n in range(2)] == [
        [*question, *context[:6], SEP],
        [*question, *context[4:], SEP],
    ]
    assert features.lengths.tolist() == [12, 9]
    assert features.features["context_start"].tolist() == [5, 5]
    assert features.features["example_index"].tolist() == [0, 0]
    assert offsets_of(features, 0).tolist() == [[0, 2], [3, 5], [5, 6], [7, 9], [10, 12], [13, 15]]
    assert offsets_of(features, 1).tolist() == [[10, 12], [13, 15], [15, 16]]


@pytest.mark.parametrize(("row_length", "doc_stride"), [(384, 128), (128, 32), (96, 0)])
def test_features_equal_the_tokenizers_own_pair_truncation(tmp_path: Path, row_length: int, doc_stride: int) -> None:
    questions = squad_questions("new-wiki-dev.json")[:300]
    folder = bert_tokenizer(tmp_path)
    features = make_features(
        load_tokenizer(folder),
        [question["question"] for question in questions],
        [question["context"] for question in questions],
        row_length,
        doc_stride,
        max_question_length=64,
    )
    plain = tokenizer_of(folder)
    plain.enable_truncation(row_length, stride=doc_stride, strategy="only_second")
    number = 0
    for example, question in enumerate(questions):
        encoding = plain.encode(question["question"], question["context"])
        for window in [encoding, *encoding.overflowing]:
            assert tokens_of(features, number) == window.ids
            assert features.features["example_index"][number] == example
            assert features.features["context_start"][number] == window.type_ids.index(1)
            inside = [offset for offset, part in zip(window.offsets, window.sequence_ids, strict=True) if part == 1]
            assert offsets_of(features, number).tolist() == [list(offset) for offset in inside]
            number += 1
    assert number == len(features.lengths)


def test_a_question_that_leaves_no_room_is_refused_with_the_knobs(tokenizer: Tokenizer) -> None:
    make_features(tokenizer, ["ba " * 10], ["go"], 16, 2, 10)  # windows of 3 move on by 1
    with pytest.raises(InputError, match="has 11 tokens and leaves 2 of 16.*max_question_length"):
        make_features(tokenizer, ["ba " * 11], ["go"], 16, 2, 11)
    with pytest.raises(InputError, match="leaves 0 of 16"):
        make_features(tokenizer, ["ba " * 20], ["go"], 16, 0, 20)


def test_empty_questions_and_contexts_have_one_feature_each(tokenizer: Tokenizer) -> None:
    features = make_features(tokenizer, ["", "Ba?"], ["go ka", ""], 16, 2, 5)
    assert [tokens_of(features, n)[-1] for n in range(2)] == [SEP, SEP]
    assert features.lengths.tolist() == [5, 5]
    assert features.features["context_start"].tolist() == [2, 4]
    assert offsets_of(features, 1).tolist() == []
    assert find_answers(features, np.array([0, 0]), np.array([2, 0]))[0].tolist() == [2, 0]
    assert len(make_features(tokenizer, [], [], 16, 2, 5).lengths) == 0


def answer(features: EncodedSequences, start: int, end: int) -> list[tuple[int, int]]:
    firsts, lasts = find_answers(features, np.array([start]), np.array([end]))
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def test_answers_are_labelled_in_the_windows_that_hold_them_whole(tokenizer: Tokenizer) -> None:
    features = make_features(tokenizer, ["Ba de?"], ["Go ka. Lu me ni."], 12, 2, 10)  # windows as worked out above
    assert answer(features, 0, 2) == [(5, 5), (0, 0)]  # "Go"
    assert answer(features, 3, 9) == [(6, 8), (0, 0)]  # "ka. Lu"
    assert answer(features, 10, 12) == [(9, 9), (5, 5)]  # "me", in both
    assert answer(features, 7, 16) == [(0, 0), (0, 0)]  # "Lu me ni." is whole in neither
    assert answer(features, 13, 16) == [(0, 0), (6, 7)]  # "ni.": the first window ends before "."
    assert answer(features, -1, -1) == [(0, 0), (0, 0)]  # no answer


@pytest.mark.parametrize("row_length", [16, 17, 40])
def test_all_examples_at_once_have_the_windows_and_labels_of_each_alone(tokenizer: Tokenizer, row_length: int) -> None:
    """Windows as `windows` cuts them, answers as a search through the tokens of each window finds them."""
    texts = random_texts(40)
    questions = [" ".join(text.split()[: number % 6]) for number, text in enumerate(texts)]
    starts = np.array([-1 if number % 9 == 0 else len(text) // 3 for number, text in enumerate(texts)])
    ends = starts + 1 + np.arange(len(texts)) % 20
    features = make_features(tokenizer, questions, texts, row_length, 3, 5)
    (firsts, lasts), number = find_answers(features, starts, ends), 0
    for example, (question, text) in enumerate(zip(questions, texts, strict=True)):
        asked = tokenizer.encode(question, add_special_tokens=False).ids[:5]
        about = tokenizer.encode(text, add_special_tokens=False)
        for start, stop in windows(len(about.ids), row_length - 3 - len(asked), 3):
            assert features.features["example_index"][number] == example
            assert tokens_of(features, number) == [CLS, *asked, SEP, *about.ids[start:stop], SEP]
            offsets = about.offsets[start:stop]
            label = (0, 0)
            if starts[example] >= 0 and offsets[0][0] <= starts[example] and offsets[-1][1] >= ends[example]:
                first = max(n for n, (begin, _) in enumerate(offsets) if begin <= starts[example])
                last = min(n for n, (_, end) in enumerate(offsets) if end >= ends[example])
                label = (len(asked) + 2 + first, len(asked) + 2 + last)
            assert (int(firsts[number]), int(lasts[number])) == label
            number += 1
    assert number == len(features.lengths)
    assert 0 < (firsts > 0).sum() < number


def test_contexts_may_be_given_once_and_named_by_number(tokenizer: Tokenizer) -> None:
    contexts, numbers = random_texts(3), np.array([2, 0, 0, 1, 2])
    questions = ["Ba?", "De?", "Go ka?", "", "Ba?"]
    spelled = make_features(tokenizer, questions, [contexts[number] for number in numbers], 32, 4, 8)
    named = make_features(tokenizer, questions, contexts, 32, 4, 8, numbers)
    np.testing.assert_array_equal(named.token_ids, spelled.token_ids)
    for name, column in spelled.features.items():
        assert named.features[name].tolist() == column.tolist()
