import re

import pytest

from tasks.pretraining.rows.pair_rows import TERMINALS, split_sentences
from tests.tasks.pretraining.row_inputs import wikitext_documents


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
