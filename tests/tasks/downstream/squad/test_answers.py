"""From logits of windows to answers: hand-worked spans, and agreement with plain loops over all pairs."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.scoring.thresholds import ChosenThreshold, risk_coverage
from tasks.downstream.squad import answers as answers_module
from tasks.downstream.squad.answers import (
    Answer,
    SquadWindows,
    WindowFiles,
    best_answers,
    best_span,
    choose_null_threshold,
    null_odds,
    null_scores,
    probable_answers,
    rank_with_null,
)
from tasks.downstream.squad.score_files import best_threshold
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.window_files import Window, words, write_logits, write_windows

CONTEXT = "the red house by the sea"
TOKENS = words(CONTEXT)
ONE = Window(0, words("the red house"), start=[1, 2, 3], end=[4, 5, 6])
TWO = Window(1, words("a dog"), start=[7, 8], end=[9, 10], question_tokens=4, outside=-1.0)
IDS = ["q0", "q1"]
FEATURES, LOGITS = "features.parquet", "logits.arrow"


def files_of(folder, windows, ids):
    return WindowFiles(*write_windows(folder, windows, ids), "{}@squad".format, ids)


def read(folder, *windows):
    count = 1 + max(window.example for window in windows)
    return files_of(folder, windows, [f"q{number}" for number in range(count)]).read()


def rewrite_logits(*starts, ids=None):
    return lambda folder: write_logits(folder / LOGITS, starts, starts, ids)


def change_features(change):
    return lambda folder: pq.write_table(change(pq.read_table(folder / FEATURES)), folder / FEATURES)


FIRST, OTHER = ONE.padded(ONE.start), TWO.padded(TWO.start)
SHORT = pa.array([5, 9], pa.int32())


@pytest.mark.parametrize(
    ("windows", "ids", "spoil", "message"),
    [
        ([ONE, TWO], IDS, rewrite_logits(FIRST, ids=[0]), "lacks feature 1: 1 lines for 2 features"),
        ([ONE, TWO], IDS, rewrite_logits(OTHER, FIRST, ids=[1, 0]), "unsorted"),
        ([ONE, TWO], IDS, rewrite_logits(FIRST, OTHER, [0.0]), "unknown"),
        ([ONE, TWO], IDS, rewrite_logits(FIRST, OTHER[:-1]), "8 logits for feature 1, 9"),
        ([ONE, TWO], IDS, rewrite_logits(FIRST, [*OTHER[:-1], math.nan]), "a logit of feature 1 is nan"),
        ([ONE, TWO], ["q0", "other"], None, "feature 1 belongs to question 'q1', expected 'other'"),
        ([ONE], IDS, None, "no feature for 1 of 2 questions, first 'q1'"),
        ([ONE, TWO], IDS[:1], None, "there are 1"),
        ([ONE, TWO], IDS, change_features(lambda table: table.set_column(3, "n_tokens", SHORT)),
         "feature 0 has more context tokens than tokens"),
        *(([ONE, TWO], IDS, change_features(lambda table, name=name: table.drop_columns([name])), name)
          for name in ("offsets", "example_id")),
        *(([ONE, TWO], IDS, spoil, f"{name}.*{stage}")
          for name, stage in ((FEATURES, "rows@squad"), (LOGITS, "predict@squad"))
          for spoil in (lambda folder, name=name: (folder / name).unlink(),
                        lambda folder, name=name: (folder / name).write_bytes(b"no table at all"))),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_refused(tmp_path, windows, ids, spoil, message):
    write_windows(tmp_path, windows, IDS)
    if spoil is not None:
        spoil(tmp_path)
    with pytest.raises(InputError, match=message):
        WindowFiles(tmp_path / FEATURES, tmp_path / LOGITS, "{}@squad".format, ids).read()


def test_windows_are_read_a_few_questions_at_a_time_and_a_defect_is_named_as_the_file_counts(tmp_path, monkeypatch):
    windows = [ONE, replace(ONE, example=1), replace(TWO, example=1), replace(TWO, example=2), replace(ONE, example=3)]
    files = files_of(tmp_path, windows, ["q0", "q1", "q2", "q3"])
    pq.write_table(pq.read_table(files.features), files.features, row_group_size=2)
    table = pa.ipc.open_file(files.logits.read_bytes()).read_all()
    with pa.ipc.new_file(str(files.logits), table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    monkeypatch.setattr(answers_module, "PART_TOKENS", 12)
    parts, whole = list(files.parts()), files.read()
    assert [part for part, _ in parts] == [slice(0, 1), slice(1, 3), slice(3, 4)]
    assert [part.example_index.tolist() for _, part in parts] == [[0], [0, 0, 1], [0]]
    for name in ("characters", "start_logits", "end_logits", "cls_logits"):
        assert np.array_equal(np.concatenate([getattr(part, name) for _, part in parts]), getattr(whole, name))
    assert whole.start_logits.tolist() == [1, 2, 3, 1, 2, 3, 7, 8, 7, 8, 1, 2, 3]
    assert whole.characters[:8].tolist() == [*[[0, 3], [4, 7], [8, 13]] * 2, [0, 1], [2, 5]]
    assert files.windows_of_examples() == [1, 2, 1, 1]
    monkeypatch.setattr(answers_module, "PART_TOKENS", 1)
    for spoilt, message in (
        ([ONE, replace(TWO, start=[7, math.nan])], "feature 1 is nan"),
        ([TWO, ONE], "example_index"),
    ):
        with pytest.raises(InputError, match=message):
            list(files_of(tmp_path, spoilt, IDS).parts())


def test_the_best_sum_of_start_and_end_of_all_windows_wins(tmp_path):
    windows = read(
        tmp_path,
        Window(0, TOKENS, start=[0, 5, 1, 0, 0, 0], end=[0, 1, 4, 0, 0, 3]),
        Window(1, TOKENS[:4], start=[1, 2, 0, 0], end=[1, 2, 0, 0]),
        Window(1, TOKENS[2:], start=[0, 0, 0, 3], end=[0, 0, 0, 3]),
        Window(2, TOKENS[:2], [0, 1], [2, 3]),  # equal scores: the earlier window, and the higher start
        Window(2, TOKENS[:2], [3, 0], [1, 0]),
        Window(3, [], [], []),
    )
    *answered, none = best_answers(windows, [*[CONTEXT] * 3, " "], n_best=2, max_answer_length=30)
    assert [[(a.text, a.start, a.end, a.score) for a in answers] for answers in answered] == [
        [("red house", 4, 13, 9.0), ("red house by the sea", 4, 24, 8.0)],
        [("sea", 21, 24, 6.0), ("red", 4, 7, 4.0)],
        [("red", 4, 7, 4.0), ("the", 0, 3, 4.0)],
    ]
    # Softmax over the two kept scores 9 and 8.
    assert [a.probability for a in answered[0]] == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert none == [Answer("", 0, 0, 0.0, 1.0)]
    assert [(a.text, null_odds([a])) for a in rank_with_null(none, -3.0, 0.0)] == [("", -3.0)]
    alone = read(tmp_path, Window(0, [], [], []))
    assert probable_answers(alone, " ", np.empty(0), top=1, max_answer_length=15) == []


def pair_loop(window, n_best, longest):
    """Scores of run_qa.py's candidates of one window, with Python loops."""
    starts = sorted(range(len(window.start)), key=lambda i: -window.start[i])[:n_best]
    ends = sorted(range(len(window.end)), key=lambda i: -window.end[i])[:n_best]
    pairs = [(s, e) for s in starts for e in ends if 0 <= e - s < longest]
    scores = [float(np.float32(window.start[s]) + np.float32(window.end[e])) for s, e in pairs]
    return sorted(scores, reverse=True)[:n_best]


@pytest.mark.parametrize(("n_best", "longest"), [(1, 30), (5, 4), (20, 30)])
def test_vectorised_search_equals_the_plain_loop(tmp_path, n_best, longest):
    generator = np.random.default_rng(n_best)
    windows = []
    for example in range(30):
        for _ in range(int(generator.integers(1, 4))):
            length = int(generator.integers(1, 40))
            start, end = generator.normal(size=(2, length)).tolist()
            windows.append(Window(example, [(i, i + 1) for i in range(length)], start, end))
    answered = best_answers(read(tmp_path, *windows), ["x" * 40] * 30, n_best=n_best, max_answer_length=longest)
    for example, answers in enumerate(answered):
        loops = [score for w in windows if w.example == example for score in pair_loop(w, n_best, longest)]
        expected = sorted(loops, reverse=True)[:n_best]
        assert [answer.score for answer in answers if answer.text] == pytest.approx(expected, abs=1e-6)


def test_probability_is_the_product_of_two_softmaxes_that_count_cls(tmp_path):
    # Weights e**x: start [CLS] 1, tokens 2 and 4 -> 4/7; end [CLS] 1, tokens 1 and 8 -> 8/10.
    log = math.log
    windows = read(tmp_path, Window(0, words("no one"), [log(2), log(4)], [log(1), log(8)], outside=0.0))
    answers = probable_answers(windows, "no one", np.arange(2), top=3, max_answer_length=15)
    assert [a.text for a in answers] == ["one", "no one", "no"]
    assert [a.score for a in answers] == pytest.approx([4 / 7 * 8 / 10, 2 / 7 * 8 / 10, 2 / 7 * 1 / 10], abs=1e-6)


def softmax_with_cls(cls, logits):
    values = np.append(cls, logits).astype(np.float64)
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def every_span(windows, words_of, longest):
    """The distinct widened spans of all windows, best first, by looking at each span there is."""
    spans = []
    for window, (low, high) in enumerate(zip(windows.bounds, windows.bounds[1:], strict=False)):
        cls, here = windows.cls_logits[window], words_of[low:high]
        start = softmax_with_cls(cls[0], windows.start_logits[low:high])
        end = softmax_with_cls(cls[1], windows.end_logits[low:high])
        for first in range(high - low):
            for last in range(first, min(first + longest, high - low)):
                left, right = np.flatnonzero(here == here[first])[0], np.flatnonzero(here == here[last])[-1]
                place = windows.characters[low + left, 0], windows.characters[low + right, 1]
                spans.append((start[1 + first] * end[1 + last], *map(int, place)))
    ordered = sorted(spans, key=lambda span: -span[0])
    return list(dict.fromkeys((first, last) for _, first, last in ordered))


@pytest.mark.parametrize("threshold", [None, -3.0, 0.0, 3.0])
def test_the_answers_kept_of_each_window_are_those_of_all_spans(threshold):
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
        how = {"max_answer_length": longest, "null_threshold": threshold}
        for top in (1, 2, 5, 99):
            answers = probable_answers(windows, "x" * 40, words_of, top=top, **how)
            assert len(answers) <= top
            spans = [(answer.start, answer.end) for answer in answers if answer.text]
            assert spans == expected[: top - (len(answers) - len(spans))]


SPANS = [Answer("red house", 4, 13, 6.0, 0.9), Answer("house", 8, 13, 4.0, 0.1)]


def test_the_null_score_is_the_least_over_the_windows_of_a_question(tmp_path):
    token = words("red")
    windows = [Window(0, token, [0], [0], outside=2.0), Window(0, token, [0], [0], outside=-1.5)]
    joined = read(tmp_path, *windows, Window(1, token, [9], [9], outside=0.25))
    assert null_scores(joined, 2).tolist() == [-3.0, 0.5]  # [CLS] has the logits of all outside of the context


@pytest.mark.parametrize(
    ("null", "threshold", "texts"),
    [
        (7.0, 0.0, ["", "red house", "house"]),
        (6.0, 0.0, ["red house", "", "house"]),  # equal is not above
        (7.0, 1.0, ["red house", "", "house"]),
        (1.0, 0.0, ["red house", "house", ""]),
    ],
)
def test_no_answer_is_given_above_the_threshold(null, threshold, texts):
    ranked = rank_with_null(SPANS, null, threshold)
    assert [answer.text for answer in ranked] == texts
    assert null_odds(ranked) == null - 6.0
    assert best_span(ranked).text == "red house"
    assert sum(answer.probability for answer in ranked) == pytest.approx(1)
    # The lead of what is answered over the next, as the threshold weighs them.
    first, second, _ = sorted([null - threshold, 6.0, 4.0], reverse=True)
    task = dataclasses.replace(task_with("squad", "scores"), chosen=ChosenThreshold(threshold))
    assert task.margin([ranked], 0) == first - second


@pytest.mark.parametrize(
    ("odds", "f1", "has_answer", "low", "high"),
    [
        # Ascending odds -2, -1, 0, 1; gains +1, -1, +0.5, +0.6: the sums are 1, 0, 0.5, 1.1.
        ([1.0, -2.0, 0.0, -1.0], [0.6, 1.0, 0.5, 0.0], [True, True, True, False], 1.0, 1.0),
        ([1.0, -2.0, 0.0, -1.0], [0.4, 1.0, 0.5, 0.0], [True, True, True, False], -2.0, -2.0),  # 0.9 is less than 1
        # At 0 both or none: +1 - 1 is not a gain, and answering nothing is as good.
        ([0.0, 0.0, 3.0], [1.0, 0.0, 0.0], [True, False, False], -math.inf, 0.0),
        ([-5.0, 2.0], [0.0, 0.0], [True, False], -5.0001, -5.0),  # no span pays
    ],
)
def test_the_threshold_has_the_best_f1(odds, f1, has_answer, low, high):
    chosen = choose_null_threshold(odds, f1, has_answer).value
    assert chosen == low == high or low < chosen < high
    if low == high:
        assert best_threshold(f1, odds, has_answer, [True] * 4)[1] == chosen


def test_the_interval_holds_the_threshold_and_narrows_with_more_questions():
    draw, widths = np.random.default_rng(0), []
    for count in (200, 20_000):
        has_answer = draw.random(count) < 0.5
        odds = draw.normal(np.where(has_answer, -1.0, 1.0), 1.5)
        chosen = choose_null_threshold(odds.tolist(), np.where(has_answer, 0.9, 0.0).tolist(), has_answer.tolist())
        assert chosen.examples == count
        assert chosen.low <= chosen.value <= chosen.high
        widths.append(chosen.high - chosen.low)
    assert widths[1] < widths[0] / 2
    assert abs(chosen.value) < 0.3, "where both densities are equal, 0.9 against 1"


def test_risk_and_coverage():
    curve = risk_coverage([0.5, -1.0, 2.0, 0.0], [0.0, 1.0, 0.0, 1.0])
    assert curve.points == ((0.25, 0.0, -1.0), (0.5, 0.0, 0.0), (0.75, pytest.approx(1 / 3), 0.5), (1.0, 0.5, 2.0))
    assert curve.area == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert (curve.look_up(0.5)[0], curve.look_up(-2.0)) == (0.75, (0.0, 0.0))
    many = risk_coverage(list(range(1003)), [1.0] * 1003).sample(200)
    assert (len(many) <= 202, many[-1][0]) == (True, 1.0)


def test_asked_questions_are_decided_as_evaluated_ones_in_one_window(tmp_path):
    draw, how = np.random.default_rng(3), {"top": 3, "max_answer_length": 6}
    for _ in range(20):
        start, end = draw.normal(size=(2, 6)).tolist()
        window = Window(0, TOKENS, start, end, outside=float(draw.normal()))
        windows = read(tmp_path, window)
        odds = 2 * window.outside - max(start[a] + end[b] for a in range(6) for b in range(a, 6))
        for threshold in (odds - 1e-3, odds + 1e-3):
            asked = probable_answers(windows, CONTEXT, np.arange(6), null_threshold=threshold, **how)
            assert (asked[0].text == "") == (odds > threshold)
            assert len(asked) == 3
            assert math.isfinite(asked[0].score)
        assert all(answer.text for answer in probable_answers(windows, CONTEXT, np.arange(6), **how))
