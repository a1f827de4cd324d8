"""Sentences of texts, and the pairs of them that rows hold."""

import random
import re

import numpy as np
import pytest

from tasks.pretraining.rows.pair_rows import (
    TERMINALS,
    make_pairs,
    split_long_sentences,
    split_sentences,
)
from tests.tasks.pretraining.row_inputs import real_data
from tests.tasks.pretraining.small_training import documents_of


def pairs_of(documents, row_length, short=0.0, seed=0):
    """Start and length of the first and of the second segment, and the label of each pair: [P, 5]."""
    made = make_pairs(documents, row_length - 3, short, np.random.default_rng(seed))
    return np.stack([*made.segments[0], *made.segments[1], made.labels], axis=1)


def test_a_document_that_fits_is_one_real_pair_or_its_sentences_with_random_ones():
    documents = documents_of([[3, 4], [5, 6]])
    assert {tuple(pair) for seed in range(200) for pair in pairs_of(documents, 64, seed=seed).tolist()} == {
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


def test_every_sentence_is_a_first_segment_or_a_real_second_one_when_nothing_is_truncated():
    documents = documents_of([[2, 3, 2, 4, 1, 2], [3, 3, 3], [4]])
    for seed in range(30):
        used = []
        for first, first_length, second, second_length, label in pairs_of(documents, 200, 0.3, seed).tolist():
            used += range(first, first + first_length)
            used += range(second, second + second_length) if label == 0 else ()
        assert sorted(used) == list(range(27))  # each token once: unused sentences were put back


def test_a_lonely_document_draws_its_random_next_from_itself():
    pairs = pairs_of(documents_of([[5, 6, 7]]), 64, seed=1)
    assert (pairs[:, 2] + pairs[:, 3] <= 18).all()


def longest_first(first, second, budget):
    """Lengths after truncation, one token at a time from the longer segment, the second when equal."""
    lengths = [first, second]
    while sum(lengths) > budget:
        lengths[lengths[0] <= lengths[1]] -= 1
    return lengths


@pytest.mark.parametrize("row_length", [16, 17, 31])
def test_truncation_leaves_what_taking_tokens_off_one_by_one_leaves(row_length):
    draw, truncated = random.Random(row_length), 0
    for _ in range(150):
        first, second = draw.randint(1, 30), draw.randint(1, 30)
        documents = documents_of([[first, second], [1]])
        for seed in range(40):  # some seed makes a real pair of them
            start, length, next_start, next_length, label = pairs_of(documents, row_length, seed=seed)[0].tolist()
            if label == 0 and start < first:
                assert [length, next_length] == longest_first(first, second, row_length - 3)
                assert start + length <= first <= next_start
                truncated += first + second > row_length - 3
                break
    assert truncated > 20


def test_truncation_takes_tokens_off_the_front_or_the_back_by_a_fair_coin():
    # Two sentences of 50 tokens as a real pair with a budget of 51: 24 come off the first, 25 off the second.
    pairs = np.array([pairs_of(documents_of([[50, 50], [1]]), 54, seed=seed)[0] for seed in range(800)])
    real = pairs[pairs[:, 4] == 0]
    assert {tuple(lengths) for lengths in real[:, [1, 3]].tolist()} == {(26, 25)}
    assert 340 < len(real) < 460
    for removed, front in ((24, real[:, 0]), (25, real[:, 2] - 50)):
        assert front.mean() == pytest.approx(removed / 2, abs=4 * np.sqrt(removed / 4 / len(real)))
        assert front.var() == pytest.approx(removed / 4, rel=0.3)


def test_half_of_the_seconds_are_random_cuts_are_even_and_a_share_of_documents_is_short():
    documents = documents_of([[1] * 500] * 200)
    for share in (0.0, 0.3):
        pairs = pairs_of(documents, 64, share, seed=1)
        lengths, owners = pairs[:, 1] + pairs[:, 3], pairs[:, 0] // 500
        longest = np.array([lengths[owners == number].max() for number in range(200)])
        assert (longest < 61).mean() == pytest.approx(share, abs=0.08)
        assert pairs[:, 4].mean() == pytest.approx(0.5, abs=0.05)
        firsts = pairs[longest[owners] == 61, 1]
        assert firsts.mean() == pytest.approx(30, abs=2)
        assert firsts.std() == pytest.approx(60 / np.sqrt(12), abs=1.5)


def test_a_sentence_that_does_not_fit_is_cut_into_halves_of_a_row():
    lengths = np.array([70, 0, 60, 61, 62, 90])
    pieces, numbers = split_long_sentences(lengths, room=61)
    assert pieces.tolist() == [30, 30, 10, 60, 61, 30, 30, 2, 30, 30, 30]
    assert numbers.tolist() == [3, 0, 1, 1, 3, 3]
    assert split_long_sentences(lengths[:0], room=61)[0].tolist() == []
    assert split_long_sentences(np.array([125]), room=62, segments=1)[0].tolist() == [62, 62, 1]


@pytest.mark.parametrize(
    "text",
    [
        "It rained. |We left! |Why? |Because.",
        "He met Dr. Ay . |It rained.\n|Yes",
        # WikiText: tokens apart by spaces, signs attached where they belong to the word
        "It is related to H. americanus . |It grows to 60 cm ( 24 in ) . |3 live .",
        'He said " go . |" Then he left .',
        '"Go." |He left.',
        "(It rained.) |We left.",
        "J. R. Smith came. |Mr. Ay too.",
        "It cost 3.5 or so, e.g. more. so be it",
        "Wait... |What?! |No.",
        "Él llegó. |Ángel no.",
        "\u96e8\u304c\u964d\u308b\u3002|\u5bd2\u3044\u3002",
        "\u5bd2\u3044\uff1f\u300d\u3001\u3068\u3002",
        "वह घर गया। |मैं 3.5 किमी चला ।|iPhone है॥",
        "هل وصل؟! |نعم، «وصل؟»، قال.",
        "وہ گیا۔|میں آیا۔ |ٹھیک ہے۔",
        "Նա գնաց։ |ես մնացի։",
        "เขาไป ฉันอยู่",
        "no stop at all\n\n \n|next",
        "",
        " \n\t ",
        ". |. |.",
    ],
)
def test_sentences_end_where_the_rule_says(text):
    """At each bar, and nowhere else."""
    assert split_sentences(text.replace("|", "")) == [part.strip() for part in text.split("|") if part.strip()]


def test_terminals_are_those_of_unicode_without_those_of_latin_text():
    regex = pytest.importorskip("regex", reason="needs the extra quality, which has Unicode's properties")
    terminals = {chr(code) for code in range(0x10000) if regex.match(r"\p{Sentence_Break=STerm}", chr(code))}
    latin = {*"!?", *map(chr, range(0x2000, 0x2070)), *map(chr, range(0x2E00, 0x2E80))}
    assert {chr(code) for code in range(0x10000) if re.match(f"[{TERMINALS}]", chr(code))} == terminals - latin


def test_no_character_but_white_space_is_lost_and_sentences_have_a_usual_length():
    text = real_data("wikitext/wikitext-2-valid.txt").read_text("utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(" = ")]
    sentences = [split_sentences(line) for line in lines]
    assert ["".join("".join(parts).split()) for parts in sentences] == ["".join(line.split()) for line in lines]
    words = sum(len(line.split()) for line in lines) / sum(map(len, sentences))
    assert 18 < words < 32  # English encyclopedia prose; tokens count signs
