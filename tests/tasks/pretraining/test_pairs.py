"""Sentences of texts, and the pairs of them that rows hold."""

import random
import re
from typing import NamedTuple

import numpy as np
import pytest

from tasks.pretraining.rows.pair_rows import (
    TERMINALS,
    TokenizedDocuments,
    make_pairs,
    split_long_sentences,
    split_sentences,
)
from tests.tasks.pretraining.row_inputs import wikitext_documents
from tests.tasks.pretraining.small_training import documents_of, random_documents


class Pairs(NamedTuple):
    first_start: np.ndarray
    first_length: np.ndarray
    second_start: np.ndarray
    second_length: np.ndarray
    labels: np.ndarray


def pairs_of(documents: TokenizedDocuments, row_length: int, short: float = 0.0, seed: int = 0) -> Pairs:
    made = make_pairs(documents, row_length - 3, short, np.random.default_rng(seed))
    return Pairs(*made.segments[0], *made.segments[1], made.labels)


def test_a_document_that_fits_is_one_real_pair_or_its_sentences_with_random_ones() -> None:
    documents = documents_of([[3, 4], [5, 6]])
    seen: set[tuple[int, ...]] = set()
    for seed in range(200):
        pairs = pairs_of(documents, 64, seed=seed)
        seen.update(zip(*(column.tolist() for column in pairs), strict=True))
    assert seen == {
        (0, 3, 3, 4, 0),  # document 0: its two sentences
        (0, 3, 7, 11, 1),
        (0, 3, 12, 6, 1),  # its first with document 1 from either sentence on
        (3, 4, 7, 11, 1),
        (3, 4, 12, 6, 1),  # the sentence put back, alone: always with a random one
        (7, 5, 12, 6, 0),
        (7, 5, 0, 7, 1),
        (7, 5, 3, 4, 1),
        (12, 6, 0, 7, 1),
        (12, 6, 3, 4, 1),
    }


def test_every_sentence_is_a_first_segment_or_a_real_second_one_when_nothing_is_truncated() -> None:
    documents = documents_of([[2, 3, 2, 4, 1, 2], [3, 3, 3], [4]])
    for seed in range(30):
        pairs = pairs_of(documents, 200, 0.3, seed)
        used: list[int] = []
        for a, la, b, lb, label in zip(
            pairs.first_start, pairs.first_length, pairs.second_start, pairs.second_length, pairs.labels, strict=True
        ):
            used += range(a, a + la)
            if label == 0:
                used += range(b, b + lb)
        assert sorted(used) == list(range(27))  # each token once: unused sentences were put back


def test_a_lonely_document_draws_its_random_next_from_itself() -> None:
    pairs = pairs_of(documents_of([[5, 6, 7]]), 64, seed=1)
    assert (pairs.second_start + pairs.second_length <= 18).all()


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths after truncation, one token at a time from the longer segment, the second when equal."""
    while first + second > budget:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@pytest.mark.parametrize(("row_length"), [16, 17, 31])
def test_truncation_leaves_what_taking_tokens_off_one_by_one_leaves(row_length: int) -> None:
    draw = random.Random(row_length)
    checked = 0
    for _ in range(150):
        first, second = draw.randint(1, 30), draw.randint(1, 30)
        documents = documents_of([[first, second], [1]])
        # As a real pair: some seed gives it; both sentences must lie within the target.
        for seed in range(40):
            pairs = pairs_of(documents, row_length, seed=seed)
            if pairs.labels[0] == 0 and pairs.first_start[0] < first:
                expected = longest_first(first, second, row_length - 3)
                assert (pairs.first_length[0], pairs.second_length[0]) == expected
                assert pairs.first_start[0] + pairs.first_length[0] <= first <= pairs.second_start[0]
                checked += first + second > row_length - 3
                break
    assert checked > 20


def test_truncation_takes_tokens_off_the_front_or_the_back_by_a_fair_coin() -> None:
    # Two sentences of 50 tokens as a real pair with a budget of 51: 24 come off the first, 25 off the second.
    fronts = []
    for seed in range(800):
        pairs = pairs_of(documents_of([[50, 50], [1]]), 54, seed=seed)
        if pairs.labels[0] == 0:
            assert (pairs.first_length[0], pairs.second_length[0]) == (26, 25)
            fronts.append((int(pairs.first_start[0]), int(pairs.second_start[0]) - 50))
    assert 340 < len(fronts) < 460
    for removed, front in zip((24, 25), np.array(fronts).T, strict=True):
        assert front.mean() == pytest.approx(removed / 2, abs=4 * np.sqrt(removed / 4 / len(fronts)))
        assert front.var() == pytest.approx(removed / 4, rel=0.3)


def plain_pairs(
    sentences: list[list[int]], row_length: int, short: float, draw: random.Random
) -> list[tuple[int, int]]:
    """The construction in the plainest words: (label, tokens) of every pair."""
    budget, made = row_length - 3, []
    for number, document in enumerate(sentences):
        target = draw.randint(2, budget) if draw.random() < short else budget
        place = 0
        while place < len(document):
            taken = [document[place]]
            while sum(taken) < target and place + len(taken) < len(document):
                taken.append(document[place + len(taken)])
            cut = draw.randint(1, len(taken) - 1) if len(taken) > 1 else 1
            first, label = sum(taken[:cut]), 0
            if len(taken) == 1 or draw.random() < 0.5:
                label = 1
                other = draw.choice([n for n in range(len(sentences)) if n != number])
                start = draw.randrange(len(sentences[other]))
                second, place = 0, place + cut
                for length in sentences[other][start:]:
                    second += length
                    if second >= target - first:
                        break
            else:
                second, place = sum(taken[cut:]), place + len(taken)
            made.append((label, min(first + second, budget) + 3))
    return made


@pytest.mark.parametrize("row_length", [32, 128])
def test_pairs_have_the_statistics_of_the_plain_construction(row_length: int) -> None:
    sentences = random_documents(5, 40)
    documents = documents_of(sentences)
    plain, ours = [], []
    for seed in range(60):
        made = np.array(plain_pairs(sentences, row_length, 0.1, random.Random(seed)))
        plain.append([len(made), made[:, 0].mean(), made[:, 1].mean()])
        pairs = pairs_of(documents, row_length, 0.1, 1000 + seed)
        ours.append([len(pairs.labels), pairs.labels.mean(), (pairs.first_length + pairs.second_length + 3).mean()])
    deviation = np.sqrt((np.var(plain, axis=0) + np.var(ours, axis=0)) / 60)
    assert (np.abs(np.mean(plain, axis=0) - np.mean(ours, axis=0)) < 4 * deviation).all()


def test_a_sentence_that_does_not_fit_is_cut_into_halves_of_a_row() -> None:
    lengths = np.array([70, 0, 60, 61, 62, 90])
    pieces, numbers = split_long_sentences(lengths, room=61)
    assert pieces.tolist() == [30, 30, 10, 60, 61, 30, 30, 2, 30, 30, 30]
    assert numbers.tolist() == [3, 0, 1, 1, 3, 3]
    assert split_long_sentences(lengths[:0], room=61)[0].tolist() == []
    assert split_long_sentences(np.array([125]), room=62, segments=1)[0].tolist() == [62, 62, 1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We left! Why? Because.", ["It rained.", "We left!", "Why?", "Because."]),
        ("He met Dr. Ay . It rained.\nYes", ["He met Dr. Ay .", "It rained.", "Yes"]),
        # WikiText: tokens apart by spaces, signs attached where they belong to the word
        (
            "It is related to H. americanus . It grows to 60 cm ( 24 in ) . 3 live .",
            ["It is related to H. americanus .", "It grows to 60 cm ( 24 in ) .", "3 live ."],
        ),
        ('He said " go . " Then he left .', ['He said " go .', '" Then he left .']),
        ('"Go." He left.', ['"Go."', "He left."]),
        ("(It rained.) We left.", ["(It rained.)", "We left."]),
        ("J. R. Smith came. Mr. Ay too.", ["J. R. Smith came.", "Mr. Ay too."]),
        ("It cost 3.5 or so, e.g. more. so be it", ["It cost 3.5 or so, e.g. more. so be it"]),
        ("Wait... What?! No.", ["Wait...", "What?!", "No."]),
        ("Él llegó. Ángel no.", ["Él llegó.", "Ángel no."]),
        ("\u96e8\u304c\u964d\u308b\u3002\u5bd2\u3044\u3002", ["\u96e8\u304c\u964d\u308b\u3002", "\u5bd2\u3044\u3002"]),
        ("\u5bd2\u3044\uff1f\u300d\u3001\u3068\u3002", ["\u5bd2\u3044\uff1f\u300d\u3001\u3068\u3002"]),
        ("वह घर गया। मैं 3.5 किमी चला ।iPhone है॥", ["वह घर गया।", "मैं 3.5 किमी चला ।", "iPhone है॥"]),
        ("هل وصل؟! نعم، «وصل؟»، قال.", ["هل وصل؟!", "نعم، «وصل؟»، قال."]),
        ("وہ گیا۔میں آیا۔ ٹھیک ہے۔", ["وہ گیا۔", "میں آیا۔", "ٹھیک ہے۔"]),
        ("Նա գնաց։ ես մնացի։", ["Նա գնաց։", "ես մնացի։"]),
        ("ሰላም ነው። ደህና፧ አዎ።", ["ሰላም ነው።", "ደህና፧", "አዎ።"]),
        ("គាត់ទៅ។ ខ្ញុំនៅ៕", ["គាត់ទៅ។", "ខ្ញុំនៅ៕"]),
        ("သူသွားသည်။ ငါနေသည်။", ["သူသွားသည်။", "ငါနေသည်။"]),
        ("เขาไป ฉันอยู่", ["เขาไป ฉันอยู่"]),
        ("no stop at all\n\n \nnext", ["no stop at all", "next"]),
        ("", []),
        (" \n\t ", []),
        (". . .", [".", ".", "."]),
    ],
)
def test_sentences_end_where_the_rule_says(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_terminals_are_those_of_unicode_without_those_of_latin_text() -> None:
    regex = pytest.importorskip("regex", reason="needs the extra quality, which has Unicode's properties")
    found = {chr(code) for code in range(0x10000) if regex.match(r"\p{Sentence_Break=STerm}", chr(code))}
    latin = {*"!?", *map(chr, range(0x2000, 0x2070)), *map(chr, range(0x2E00, 0x2E80))}
    assert {chr(code) for code in range(0x10000) if re.match(f"[{TERMINALS}]", chr(code))} == found - latin


def test_no_character_but_white_space_is_lost_and_sentences_have_a_usual_length() -> None:
    texts = wikitext_documents()
    pieces = [split_sentences(text) for text in texts]
    for text, sentences in zip(texts, pieces, strict=True):
        assert "".join("".join(sentences).split()) == "".join(text.split())
    words = sum(len(text.split()) for text in texts) / sum(map(len, pieces))
    assert 18 < words < 32  # English encyclopedia prose; tokens count signs
