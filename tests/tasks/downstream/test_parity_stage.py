"""The same model in two places: words and params that name them, distances and changed answers by hand.

Real jobs: bf16 in texts/test_text_stages.py, the IPU double in inference/test_models_to_apply.py.
"""

import pyarrow as pa
import pytest

from tasks.downstream import parity
from tasks.downstream.parity import check_limit, compare_logits
from tasks.downstream.squad.answers import Answer
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.params.downstream import ParityParams
from tasks.params.schema import validate_params
from tasks.params.sections import RuntimeSpec
from tasks.stage.errors import ParamsError, ParityLost
from tests.tasks.downstream.entries import task_with, values_with
from tests.tasks.downstream.squad.window_files import write_logits
from tests.tasks.downstream.texts.glue_checkout import run_stage
from tests.tasks.release.evaluated_checkout import inputs_of, write_checkout

TASK = task_with("squad", "scores")


def allowing(most):
    return task_with("squad", "scores", parity=ParityParams(max_logit_difference=most))


@pytest.mark.parametrize(
    ("places", "message"),
    [
        *(([place], f"'{place}' must be RUNTIME") for place in ("", "cpu:", "cpu:int8", "cpu:fp32:x")),
        (["cpu:bf16", "cpu:bf16"], "against: .*duplicates"),
    ],
)
def test_a_place_is_a_runtime_and_a_precision(places, message):
    assert RuntimeSpec.parse("cpu:bf16") == RuntimeSpec("cpu", "bf16")
    assert RuntimeSpec.parse("ipu") == RuntimeSpec("ipu", "auto")
    with pytest.raises(ParamsError, match=message):
        validate_params(values_with({"squad": {"parity": {"against": places}}}))


@pytest.mark.parametrize(
    ("words", "message"), [(["tpu"], "'tpu' must be"), (["cpu", "--output", "x"], "need --baseline")]
)
def test_words_of_the_stage_that_do_not_fit_are_refused(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_stage(parity, "squad", *words)
    assert message in capsys.readouterr().err


def test_distances_and_changed_answers_by_hand(tmp_path):
    root = write_checkout(tmp_path / "a")
    logits = inputs_of(root).logits
    table = pa.ipc.open_file(logits.read_bytes()).read_all()
    starts, ends = table["start_logits"].to_pylist(), table["end_logits"].to_pylist()
    # q0: "red house" had 5 + 5; "the" to "sea" had 0. Now "the" starts with 6, so that the answer grows.
    starts[0][4] += 6.0
    starts[3][0] -= 0.5  # the [CLS] of the last window: counts as a distance and changes no answer
    other = write_logits(tmp_path / "other.arrow", starts, ends)
    task = task_with("squad", "scores", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30))
    record = compare_logits(task, {"dev": logits}, {"dev": other}, root)
    assert (record["max_logit_difference"], record["max_logit_difference_in"], record["max_logit"]) == (6.0, "q0", 6.0)
    count = 2 * (6 + 3 + 3 + 6) + 2 * 4
    assert record["mean_logit_difference"] == pytest.approx(6.5 / count)
    assert record["rms_logit_difference"] == pytest.approx(((36 + 0.25) / count) ** 0.5)
    assert record["changed_answers"] == 1
    [changed] = record["changed"]
    assert (changed["id"], changed["first"], changed["second"]) == ("q0", "red house", "the red house")
    assert changed["margin"] == 5.0  # the next answers had 5 + 0
    same = compare_logits(task, {"dev": logits}, {"dev": logits}, root)
    assert (same["max_logit_difference"], same["changed"], same["f1_first"]) == (0.0, [], same["f1_second"])
    check_limit(record, allowing(None).entry)
    check_limit(record, allowing(6.0).entry)
    with pytest.raises(ParityLost, match=r"up to 6 \(in 'q0'\), the limit is 5.9 .* 1 of 3"):
        check_limit(record, allowing(5.9).entry)
    answers = [Answer("a", 0, 1, 5.0, 0.5), Answer("a", 4, 5, 4.0, 0.3), Answer("b", 2, 3, 1.5, 0.2)]
    assert TASK.margin([answers], 0) == 3.5, "to the next other text"
    assert TASK.margin([answers[:2]], 0) is None
