"""The same model in two places: distances and changed answers by hand, then real jobs on the CPU and the IPU double."""

import json
import os

import pyarrow as pa
import pytest

from tasks.downstream import parity
from tasks.downstream.parity import check_limit, compare_devices, compare_logits, predict_on
from tasks.downstream.squad.answers import Answer
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.params.downstream import ParityParams
from tasks.params.overlays import resolve
from tasks.params.schema import validate_params
from tasks.params.sections import RuntimeSpec
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError, ParityLost
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.squad.question_files import VOCABULARY
from tests.tasks.downstream.squad.window_files import write_logits
from tests.tasks.downstream.texts.glue_checkout import device_job_here, run_stage
from tests.tasks.pretraining.row_inputs import squad_params, write_questions, write_squad_rows
from tests.tasks.release.evaluated_checkout import inputs_of, write_checkout
from tests.tasks.tiny_model import write_tiny_model

DOUBLE = ROOT / "tests" / "doubles" / "poptorch_double"
FP32, BF16 = RuntimeSpec("cpu", "fp32"), RuntimeSpec("cpu", "bf16")
TASK = task_with("squad", "scores")


def params_with(*overrides):
    return validate_params(resolve(read_yaml(ROOT / "params.yaml"), None, list(overrides)))


def allowing(most):
    return task_with("squad", "scores", parity=ParityParams(max_logit_difference=most))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cpu:bf16", RuntimeSpec("cpu", "bf16")),
        ("ipu", RuntimeSpec("ipu", "auto")),
        ("auto:auto", RuntimeSpec("auto", "auto")),
        *((text, None) for text in ("", "cpu:", "cpu:int8", "cpu:fp32:x")),
    ],
)
def test_a_place_is_a_runtime_and_a_precision(text, place):
    if place is not None:
        assert RuntimeSpec.parse(text) == place
        return
    with pytest.raises(ValueError, match=r"must be RUNTIME\[:PRECISION\]"):
        RuntimeSpec.parse(text)


def test_distances_and_changed_answers_by_hand(tmp_path):
    root = write_checkout(tmp_path / "a")
    inputs = inputs_of(root)
    with pa.memory_map(str(inputs.logits)) as source:
        table = pa.ipc.open_file(source).read_all()
    starts, ends = table["start_logits"].to_pylist(), table["end_logits"].to_pylist()
    # q0: "red house" had 5 + 5; "the" to "sea" had 0. Now "the" starts with 6, so that the answer grows.
    starts[0][4] += 6.0
    starts[3][0] -= 0.5  # the [CLS] of the last window: counts as a distance and changes no answer
    other = write_logits(tmp_path / "other.arrow", starts, ends)
    task = task_with("squad", "scores", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30))
    found = compare_logits(task, {"dev": inputs.logits}, {"dev": other}, root)
    assert (found["max_logit_difference"], found["max_logit_difference_in"], found["max_logit"]) == (6.0, "q0", 6.0)
    logits = 2 * (6 + 3 + 3 + 6) + 2 * 4
    assert found["mean_logit_difference"] == pytest.approx(6.5 / logits)
    assert found["rms_logit_difference"] == pytest.approx(((36 + 0.25) / logits) ** 0.5)
    assert found["changed_answers"] == 1
    (changed,) = found["changed"]
    assert (changed["id"], changed["first"], changed["second"]) == ("q0", "red house", "the red house")
    assert changed["margin"] == 5.0  # the next answers had 5 + 0
    same = compare_logits(task, {"dev": inputs.logits}, {"dev": inputs.logits}, root)
    assert (same["max_logit_difference"], same["changed"], same["f1_first"]) == (0.0, [], same["f1_second"])
    check_limit(found, allowing(None).entry)
    check_limit(found, allowing(6.0).entry)
    with pytest.raises(ParityLost, match=r"up to 6 \(in 'q0'\), the limit is 5.9 .* 1 of 3"):
        check_limit(found, allowing(5.9).entry)
    answers = [Answer("a", 0, 1, 5.0, 0.5), Answer("a", 4, 5, 4.0, 0.3), Answer("b", 2, 3, 1.5, 0.2)]
    assert TASK.margin([answers], 0) == 3.5, "to the next other text"
    assert TASK.margin([answers[:2]], 0) is None


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A checkout with a random model, twenty questions and their rows."""
    folder = tmp_path_factory.mktemp("parity")
    model = write_tiny_model(folder / artifacts.model_folder("squad"), VOCABULARY)
    (folder / "inputs" / "ipu").mkdir(parents=True)
    questions = []
    for i in range(20):
        text = f"The town of mill {i} was founded by miller {i * 7} in {1400 + i}."
        answer = {"text": str(1400 + i), "answer_start": text.index(str(1400 + i))}
        asked = {"id": str(i), "title": "t", "context": text, "question": "When was the town founded?"}
        questions.append({**asked, "answers": [answer]})
    source = write_questions(folder / artifacts.examples_file("squad", "dev"), questions)
    params = squad_params(row_length=96, doc_stride=16, max_question_length=32)
    write_squad_rows(params, "dev", source, model, folder / artifacts.rows_folder("squad", "dev"))
    return folder


@pytest.mark.usefixtures("jobs_here")
def test_bf16_beside_fp32_on_the_cpu(root, tmp_path):
    said = compare_devices(BF16, TASK, params_with(), tmp_path / "found.json", FP32, root)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["first"] == {"runtime": "cpu", "precision": "fp32"}
    assert found["second"] == {"runtime": "cpu", "precision": "bf16"}
    assert 1e-4 < found["max_logit_difference"] < 0.2 * found["max_logit"]
    assert found["changed_answers"] == len(found["changed"]) < 20
    assert said.startswith("parity of cpu:bf16 with cpu:fp32: ")
    strict = allowing(found["max_logit_difference"] / 2)
    with pytest.raises(ParityLost, match="downstream.squad.parity.max_logit_difference"):
        compare_devices(BF16, strict, params_with(), None, FP32, root)


@pytest.mark.soak
def test_the_ipu_double_beside_the_cpu(root, tmp_path, monkeypatch):
    """In fp32 both compute the same numbers; only the layout of the rows differs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DOUBLE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("PODIUM_EXECUTABLE_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)  # executables/ of a checkout: there are none
    params = params_with(
        "device.micro_batch_size=2",
        "downstream.squad.ipu.predict={layers_per_ipu: [2], inference_device_iterations: 1}",
    )
    used, ipu = predict_on(RuntimeSpec("ipu", "fp32"), TASK, params, tmp_path / "ipu", root)
    assert used == {"runtime": "ipu", "precision": "fp32"}
    monkeypatch.setattr(parity, "run_device_job", device_job_here)
    _, cpu = predict_on(FP32, TASK, params, tmp_path / "cpu", root)
    found = compare_logits(TASK, cpu, ipu, root)
    assert found["max_logit_difference"] < 1e-4 * found["max_logit"]
    assert found["changed"] == []


@pytest.mark.parametrize(("words", "said"), [(["tpu"], "'tpu' must be"), (["cpu", "--output", "x"], "need --baseline")])
def test_words_of_the_stage_that_do_not_fit_are_refused(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_stage(parity, "squad", *words)
    assert said in capsys.readouterr().err


def test_places_in_params_are_checked():
    for override, message in (("[cpu:int8]", "'cpu:int8' must be"), ("[cpu:bf16, cpu:bf16]", "against: .*duplicates")):
        with pytest.raises(ParamsError, match=message):
            params_with(f"downstream.squad.parity.against={override}")
