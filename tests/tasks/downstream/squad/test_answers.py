"""Hand-worked spans, and agreement with a plain loop over all pairs."""

import math
from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.squad.answers import Answer, SquadWindows, best_answers, probable_answers
from tests.tasks.downstream.squad.window_files import Window, read_windows, words, write_windows

CONTEXT = "the red house by the sea"
TOKENS = words(CONTEXT)
APART = np.arange(10)
"""Every token is a word of its own."""


def read(folder: Path, windows: list[Window], examples: int = 1) -> SquadWindows:
    ids = [f"q{i}" for i in range(examples)]
    return read_windows(*write_windows(folder, windows, ids), ids)


def test_the_best_sum_of_start_and_end_wins(tmp_path: Path) -> None:
    windows = read(tmp_path, [Window(0, TOKENS, start=[0, 5, 1, 0, 0, 0], end=[0, 1, 4, 0, 0, 3])])
    first, second = best_answers(windows, [CONTEXT], n_best=2, max_answer_length=30)[0]
    assert (first.text, first.start, first.end, first.score) == ("red house", 4, 13, 9.0)
    assert (second.text, second.score) == ("red house by the sea", 8.0)
    # Softmax over the two kept scores 9 and 8.
    assert first.probability == pytest.approx(1 / (1 + math.exp(-1)))
    assert second.probability == pytest.approx(1 / (1 + math.exp(1)))


def test_the_best_of_all_windows_of_an_example_wins(tmp_path: Path) -> None:
    windows = read(
        tmp_path,
        [
            Window(0, TOKENS[:4], start=[1, 2, 0, 0], end=[1, 2, 0, 0]),
            Window(0, TOKENS[2:], start=[0, 0, 0, 3], end=[0, 0, 0, 3]),
            Window(1, words("no one"), start=[8, 0], end=[8, 0]),
        ],
        examples=2,
    )
    first, second = best_answers(windows, [CONTEXT, "no one"], n_best=3, max_answer_length=30)
    assert [first[0].text, first[1].text, first[1].score] == ["sea", "red", 4.0]
    assert second[0].text == "no"
    assert sum(answer.probability for answer in first) == pytest.approx(1.0)


def test_equal_scores_go_to_the_earlier_window_and_the_higher_start(tmp_path: Path) -> None:
    windows = read(tmp_path, [Window(0, TOKENS[:2], [0, 1], [2, 3]), Window(0, TOKENS[:2], [3, 0], [1, 0])])
    found = best_answers(windows, [CONTEXT], n_best=2, max_answer_length=30)[0]
    assert [(a.text, a.score) for a in found] == [("red", 4.0), ("the", 4.0)]


def test_a_context_without_tokens_gets_the_empty_answer(tmp_path: Path) -> None:
    windows = read(tmp_path, [Window(0, [], [], []), Window(1, [(0, 2)], [1], [1])], examples=2)
    empty, full = best_answers(windows, [" ", "no"], n_best=5, max_answer_length=30)
    assert empty == [Answer("", 0, 0, 0.0, 1.0)]
    assert full[0].text == "no"


def test_characters_beyond_ascii_are_cut_by_character(tmp_path: Path) -> None:
    text = "Ærø ligger 🙂 syd for Łódź"
    windows = read(tmp_path, [Window(0, words(text), [0, 0, 3, 0, 0, 0], [0, 0, 0, 0, 0, 3])])
    assert best_answers(windows, [text], n_best=1, max_answer_length=30)[0][0].text == "🙂 syd for Łódź"


def pair_loop(window: Window, n_best: int, longest: int) -> list[float]:
    """Scores of run_qa.py's candidates of one window, with Python loops."""
    starts = sorted(range(len(window.start)), key=lambda i: -window.start[i])[:n_best]
    ends = sorted(range(len(window.end)), key=lambda i: -window.end[i])[:n_best]
    scores = [
        float(np.float32(window.start[s]) + np.float32(window.end[e]))
        for s in starts
        for e in ends
        if 0 <= e - s < longest
    ]
    return sorted(scores, reverse=True)[:n_best]


@pytest.mark.parametrize(("n_best", "longest"), [(1, 30), (5, 4), (20, 30)])
def test_vectorised_search_equals_the_plain_loop(tmp_path: Path, n_best: int, longest: int) -> None:
    generator = np.random.default_rng(n_best)
    windows = []
    for example in range(30):
        for _ in range(int(generator.integers(1, 4))):
            length = int(generator.integers(1, 40))
            start, end = generator.normal(size=(2, length))
            windows.append(Window(example, [(i, i + 1) for i in range(length)], start.tolist(), end.tolist()))
    found = best_answers(read(tmp_path, windows, 30), ["x" * 40] * 30, n_best=n_best, max_answer_length=longest)
    for example, answers in enumerate(found):
        loops = [score for w in windows if w.example == example for score in pair_loop(w, n_best, longest)]
        expected = sorted(loops, reverse=True)[:n_best]
        assert [answer.score for answer in answers if answer.text] == pytest.approx(expected, abs=1e-6)


def test_probability_is_the_product_of_two_softmaxes_that_count_cls(tmp_path: Path) -> None:
    # Weights e**x: start [CLS] 1, tokens 2 and 4 -> 4/7; end [CLS] 1, tokens 1 and 8 -> 8/10.
    log = math.log
    window = Window(0, words("no one"), [log(2), log(4)], [log(1), log(8)], outside=0.0)
    found = probable_answers(read(tmp_path, [window]), "no one", APART, top=3, max_answer_length=15)
    assert [(a.text, round(a.score, 6)) for a in found] == [
        ("one", round(4 / 7 * 8 / 10, 6)),
        ("no one", round(2 / 7 * 8 / 10, 6)),
        ("no", round(2 / 7 * 1 / 10, 6)),
    ]


def test_no_context_token_gives_no_probable_answer(tmp_path: Path) -> None:
    windows = read(tmp_path, [Window(0, [], [], [])])
    assert probable_answers(windows, " ", np.empty(0), top=1, max_answer_length=15) == []


def every_span(windows: SquadWindows, words_of: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """The distinct widened spans of all windows, best first, by looking at each span there is."""
    spans: list[tuple[float, int, int]] = []
    for window, (low, high) in enumerate(zip(windows.bounds, windows.bounds[1:], strict=False)):
        start, end = (
            np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            for logits in (
                np.append(cls, values[low:high]).astype(np.float64)
                for cls, values in zip(
                    windows.cls_logits[window], (windows.start_logits, windows.end_logits), strict=True
                )
            )
        )
        for first in range(high - low):
            for last in range(first, min(first + longest, high - low)):
                here = words_of[low:high]
                left, right = np.flatnonzero(here == here[first])[0], np.flatnonzero(here == here[last])[-1]
                place = windows.characters[low + left, 0], windows.characters[low + right, 1]
                spans.append((start[1 + first] * end[1 + last], *map(int, place)))
    ordered = sorted(spans, key=lambda one: -one[0])
    return list(dict.fromkeys((first, last) for _, first, last in ordered))


@pytest.mark.parametrize("threshold", [None, -3.0, 0.0, 3.0])
def test_the_answers_kept_of_each_window_are_those_of_all_spans(threshold: float | None) -> None:
    draw = np.random.default_rng(0)
    for _ in range(60):
        lengths = draw.integers(1, 8, 4)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        places = np.concatenate([np.arange(count) + first for count, first in zip(lengths, (0, 2, 4, 6), strict=True)])
        start, end = draw.integers(-2, 3, (2, bounds[-1])).astype(np.float32)  # with many ties
        cls = draw.integers(-2, 3, (4, 2)).astype(np.float32)
        windows = SquadWindows(np.zeros(4, int), bounds, np.stack([places * 2, places * 2 + 1], 1), start, end, cls)
        longest, words_of = int(draw.integers(1, 6)), places // 2
        expected = every_span(windows, words_of, longest)
        for top in (1, 2, 5, 99):
            found = probable_answers(
                windows, "x" * 40, words_of, top=top, max_answer_length=longest, null_threshold=threshold
            )
            assert len(found) <= top
            spans = [(one.start, one.end) for one in found if one.text]
            assert spans == expected[: top - (len(found) - len(spans))]
