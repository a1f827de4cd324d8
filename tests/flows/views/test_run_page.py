"""What the page of a run says: of runs that ended in every way, of a running one, of one that was killed."""

import json
import re
import threading
from html import unescape
from urllib.parse import unquote

import pytest

from flows.runs import listing, report
from flows.views import curves, placement, run_page, run_view
from flows.views.run_view import RunView
from ipu_model.core import files
from tasks.plan.plan_file import read_plan
from tasks.stage.process import read_usage
from tests.browser import made_runs
from tests.flows.toy_runs import ACCEPTED, podium, require_end, run, run_json
from tests.places import ROOT
from tests.tasks.hostile import without_own_script

MOMENTS = {"began": "2026-11-23T10:00:00+0000", "ended": "2026-11-23T10:00:27+0000"}


def html_of(project):
    return (project / run_json(project)["folder"] / "reports" / "run.html").read_text()


def text_of(html):
    """What stands on a page, each cell and line apart from the next by one blank."""
    body = without_own_script(html).partition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def status_of(html):
    return re.search(r'<h1>.*?<span class="badge[^"]*">(.*?)</span>', html)[1]


def head_of(record, project, at_work=False):
    return text_of(run_page.render_run(RunView(record, project, at_work=at_work))).partition(" started ")[0]


def scored(checks=(), accepted=True, score=90.0, **more):
    """The record of a run that scored, and its interval of two points to both sides."""
    result = {"name": "squad", "scores": {"f1": score}, "intervals": {"f1": [score - 2, score + 2]}, "published": None}
    result["checks"] = [{"ok": True, "found": "", "required": 85.0, **check} for check in checks]
    result["decision"] = {"accepted": accepted, "reasons": [] if accepted else ["F1 is 80, below the floor of 85."]}
    return report.RunReport(".", results={"gate@squad": result}, **MOMENTS, **more)


def test_a_run_that_skips_all_shows_what_the_stages_took_in_the_run_that_made_them(rejected, toy_project):
    for number, stage in enumerate(("first", "second"), 1):
        made_runs.recorded(toy_project, stage, number * 1.5, None if number == 2 else "evening")
    run()
    text = text_of(html_of(toy_project))
    assert "first skipped 1.5 s 2 s 90 MB" in text
    assert "second skipped 3 s" in text
    assert "gate@squad skipped Wall" in text, "it has no record"
    assert "figures from the run of 2026-11-22 10:00:00 +0000 (evening)" in text
    assert "figures from the run of dvc repro." in text


def test_the_advice_of_the_gate_takes_the_place_of_the_general_one(toy_project):
    record = scored([{"name": "f1", "ok": False, "found": 80.0}], accepted=False, score=80.0)
    record.results["gate@squad"]["decision"]["advice"] = [{"text": "The loss has not moved.", "set": {}}]
    head = head_of(record, toy_project)
    assert ("The loss has not moved." in head, "more data" in head) == (True, False)


@pytest.mark.parametrize(
    ("name", "figures", "pattern"),
    [
        ("released_model", (2.0, 0.5, 3.5, "better"), r"better .*: \+2.00 \(\+0.50 to \+3.50\)"),
        ("released_model", (1.0, -0.1, 2.0, "no difference shown"), "no difference from the released model"),
        ("released_model", (1.0, 0.1, 2.0, "no difference shown"), "by McNemar's exact test: "),
        ("teacher", (-2.0, -3.5, -0.5, "worse"), r"worse .* \(92.00\): -2.00 \(-3.50 to -0.50\)"),
    ],
)
def test_the_head_compares_a_score_as_the_gate_did(name, figures, pattern, toy_project):
    difference = dict(zip(("mean", "low", "high", "verdict"), figures, strict=True)) | {"metric": "f1"}
    assert re.search(pattern, head_of(scored([{"name": name, "difference": difference}]), toy_project))
    others = [{"metric": "exact"}, {"mean": None, "low": None, "high": None}][: 1 + (name == "teacher")]
    for other in others:
        record = scored([{"name": name, "difference": difference | other}])
        assert not re.search(pattern, head_of(record, toy_project))


def test_page_and_terminal_have_the_verdict_on_each_export_after_the_models(toy_project):
    record = scored()
    record.results["gate@squad"]["exports"] = {
        "onnx/model.onnx": {"accepted": True, "reasons": []},
        "onnx/model_quantized.onnx": {"accepted": False, "reasons": ["F1 dropped by 3 points."]},
    }
    head = head_of(record, toy_project)
    verdicts = "onnx/model.onnx accepted onnx/model_quantized.onnx rejected F1 dropped by 3 points."
    assert head.index("squad accepted") < head.index(verdicts) < head.index("Next podium publish")
    lines = RunView(record, toy_project).list_lines()[-2:]
    assert " ".join(line.strip().replace(":", "") for line in lines) == verdicts


@pytest.mark.parametrize("checked", [[], ["exact"]], ids=["no floor", "another floor"])
def test_the_score_of_unanswerable_questions_is_their_f1_and_its_notes_are_of_f1(checked, toy_project):
    gain = {"metric": "f1", "mean": 5.0, "low": 4.0, "high": 6.0, "verdict": "better"}
    checks = [{"name": name, "found": 61.0} for name in checked]
    record = scored([*checks, {"name": "beats_constant_answer", "difference": gain}])
    scores = {"HasAns_exact": 0.0, "HasAns_f1": 3.0, "NoAns_exact": 99.0, "exact": 61.0, "f1": 62.5}
    intervals = {name: [value - 1, value + 1] for name, value in scores.items()}
    record.results["gate@squad"] |= {"scores": scores, "intervals": intervals, "leading": ["f1"]}
    assert "f1 62.50 95% interval 61.50 to 63.50 better than the baseline" in head_of(record, toy_project)
    assert listing.format_score(record.leading_score) == "f1 62.50 (61.5 to 63.5)"
    record.results["gate@squad"]["leading"] = ["exact"]
    assert "than the baseline" not in head_of(record, toy_project), "the gain is one of F1"


@pytest.mark.parametrize(
    ("before", "text"), [(80.0, "better than"), (99.0, "worse than"), (89.0, "no difference from")]
)
def test_the_head_compares_a_score_with_the_run_before_of_the_same_name(before, text, toy_project):
    scored(score=before).save(toy_project)
    record = scored()
    record.begin(toy_project)
    assert re.search(rf"{text} the run of 2026-11-23 10:00.*\), not paired", head_of(record, toy_project))
    record.save(toy_project)
    again = scored()
    again.begin(toy_project)
    again.read_results(toy_project)
    assert again.previous["scores"] == {"squad": {"f1": before}}, "nothing was evaluated again"


def test_the_head_of_a_run_at_work_has_its_stage_share_time_left_loss_and_the_score_before(tmp_path):
    record, root = made_runs.run(tmp_path, "running")
    head = head_of(record, root, at_work=True)
    assert "progress 33 % pretrain@phase1, 2 min 05 s left stage 10 of 15" in head
    assert re.search(r"loss of pretrain \d\.\d+ update 500 of 1,500.*f1 before 84.00", head)


def test_the_head_of_a_pretraining_has_its_change_and_that_of_a_model_what_it_is_against(toy_project):
    scores = {"mlm_loss": 2.5, "perplexity": 12.18, "mlm_accuracy": 51.0}
    phase = {"name": "phase2", "scores": scores, "rows": 40, "steps": 9, "training_loss": 2.4, "model": "models/phase2"}
    previous = {"began": "2026-11-16T09:30:00+0000", "scores": {"phase2": {"mlm_loss": 3.0}}}
    record = scored(previous={**previous, "intervals": {"phase2": {}}}, pretraining={"pretrain@phase2": phase})
    record.results = {}
    assert "-0.5 against the run of 2026-11-16 09:30: better (not tested)" in head_of(record, toy_project)
    record = scored()
    other = {"entry": "squad-original", "title": "F1", "before": 88.0, "score": 90.0, "mean": 2.0, "low": 1.0}
    record.results["gate@squad"]["against"] = [{**other, "high": 3.0, "verdict": "better"}]
    assert "squad-original: F1 88.00; squad: 90.00; +2.00 (+1.00 to +3.00), better" in head_of(record, toy_project)


def test_a_lowered_floor_is_shown_as_lowered_beside_the_default(prefect_session, toy_project):
    run(*ACCEPTED, "ipu.phase1={layers_per_ipu: [1, 1]}")
    root = toy_project / run_json(toy_project)["folder"]
    record = report.read_report(toy_project, root)
    record.results["gate@squad"]["checks"] = [{"name": "f1", "ok": True, "found": 80.5, "required": 80.0}]
    text = text_of(run_page.render_run(RunView(record, root, toy_project)))
    assert "f1 passed 80.5 80 lowered from 85 +0.5" in text
    assert "published floor lowered" in text, "next to the outcome"
    assert re.search(r"downstream\.squad\.gate\.min_f1 85 80 .*ipu\.phase1\.layers_per_ipu \[1, 1\]", text)
    assert "ipu.phase1 none none" not in text


def copies_of(project):
    return sorted((project / "reports" / "runs").glob("*.html"))


def require_links(page):
    links = re.findall(r'href="([^"#]+)"', page.read_text())
    assert links
    assert [link for link in links if not (page.parent / unquote(link)).exists()] == [], page.name


def test_the_page_of_each_run_stays_beside_that_of_the_newest_and_the_oldest_go(rejected, toy_project, monkeypatch):
    (first,) = copies_of(toy_project)
    text = first.read_text()
    assert re.fullmatch(r"\d{8}-\d{6}-rejected\.html", first.name)
    assert 'href="../index.html"' in text, "though the page of all runs was written first at its end"
    run(command="the second", to=["first"])
    assert first.read_text() == text
    html = html_of(toy_project)
    assert "command the second" in text_of(html)
    assert f'href="runs/{first.name}"' in html
    for page in (toy_project / "reports" / "run.html", *copies_of(toy_project)):
        require_links(page)
    monkeypatch.setattr(run_page, "MAX_COPIES", 2)
    later = {name: moment.replace("2026", "2099") for name, moment in MOMENTS.items()}
    run_page.write_ended(report.RunReport(".", **later), toy_project, toy_project)
    assert [path.exists() for path in (first, *copies_of(toy_project))] == [False, True, True]


def test_a_release_on_a_server_is_linked_and_one_that_names_another_scheme_is_not():
    for url, linked in (("https://hub.example/user/demo", True), ("javascript:alert(1)", False)):
        record = scored()
        record.results["gate@squad"]["published"] = {"url": url}
        (result,) = RunView(record, ROOT).results
        assert (bool(result.published["url"]), result.published["where"]) == (linked, url)


def test_a_stage_tells_its_cpu_seconds_and_memory_and_old_figures_are_not_taken(tmp_path):
    path, figures = tmp_path / "usage.json", {"cpu_seconds": 1.5, "peak_memory_mb": 20.0}
    path.write_text(json.dumps({"began": 10.0, **figures}))
    assert (read_usage(path, 9.0), read_usage(path, 11.0)) == (figures, {})
    path.write_text("half")
    assert read_usage(path, 9.0) == {}


def test_the_page_of_a_run_at_work_refreshes_and_that_of_a_killed_one_is_put_right_and_kept(
    prefect_session, toy_project, capsys
):
    record = report.RunReport(".", began=MOMENTS["began"], plan=["first", "second", "gate@squad"])
    record.stages, record.at_work = [report.StageRecord("first", "ran", 1.5, began=1.0)], {"second": 2.0}
    run_page.write_running(record, toy_project, toy_project)
    path = toy_project / "reports" / "run.html"
    html = path.read_text()
    assert (status_of(html), 'http-equiv="refresh" content="10"' in html) == ("running", True)
    assert "second running" in text_of(html)
    require_end(capsys, 0, "killed", "runs")
    html = path.read_text()
    assert (status_of(html), "refresh" in html) == ("killed", False)
    assert re.search(r"second killed at least \d.* gate@squad not reached", text_of(html))
    before = path.stat().st_mtime_ns
    podium(capsys, "runs")
    assert path.stat().st_mtime_ns == before, "once is enough"
    run(publish=False)
    assert [status_of(page.read_text()) for page in copies_of(toy_project)] == ["killed", "rejected"]
    assert "killed it ended without a report" in text_of(html_of(toy_project))


def test_a_full_disk_does_not_end_the_run_that_the_page_is_of(toy_project, monkeypatch):
    tried = threading.Event()

    def fill(*_):
        tried.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_page, "FIRST_UPDATE_S", 0.01)
    monkeypatch.setattr(run_page, "write_running", fill)
    with run_page.keep_updated(report.RunReport("."), toy_project, toy_project):
        assert tried.wait(60)


TRAINING = curves.Stage(
    *("finetune@squad", "", (), {}, (), ("metrics/squad-finetune.json",)),
    *(("plots/squad-finetune.csv", "plots/squad-finetune-held-out.csv"), {"host": "device"}),
)


@pytest.fixture
def training(tmp_path):
    folder = tmp_path / "runs" / "squad-finetune" / "abc"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    return folder


def read_training(folder, *since):
    root = folder.parents[2]
    return curves.read_training(TRAINING, root, root, *since)


def test_curves_of_a_training_that_failed_are_those_of_its_run_folder(training):
    (training / "history.csv").write_text("step,loss,learning_rate\n10,4.0,0.1\n20,2.0,0.2\n30,1.")
    event = '{"event": "step", "step": %d, "real_tokens_per_second": %d, "memory_mb": %d}\n'
    log = training / "job.log"
    log.write_text(event % (10, 100, 7) + "a warning\n" + event % (20, 200, 8) + '{"event": "step", "st')
    figures = read_training(training)
    assert curves.column_points(figures.history, "loss") == [(10.0, 4.0), (20.0, 2.0)], "the last line is half there"
    assert curves.column_points(figures.steps, curves.SPEED) == [(10, 100), (20, 200)]
    with log.open("a") as stream:
        stream.write('ep": 30, "real_tokens_per_second": 300, "memory_mb": 9}\n' + event % (20, 250, 8))
    figures = read_training(training)
    assert curves.column_points(figures.steps, curves.SPEED) == [(10, 100), (20, 250), (30, 300)], "20 was made again"
    assert curves.column_points(figures.steps, curves.MEMORY) == [(10, 7), (20, 8), (30, 9)]
    (section,) = curves.make_sections([figures])
    assert section["title"] == "finetune@squad", "one training: its figures next to each other"
    titles = ["Loss", "Learning rate", "Speed", "Memory"]
    assert [figure["title"] for figure in section["figures"]] == titles
    assert [section["title"] for section in curves.make_sections([figures, figures])] == titles


@pytest.mark.parametrize(
    ("job", "parts", "axis"),
    [
        ({"head": "pretraining"}, (), "loss (nats)"),
        ({"head": "sequence_classification", "labels": 1}, (), "loss (squared)"),
        ({"head": "question_answering"}, ("start_loss", "end_loss", "teacher_loss"), "loss (nats)"),
    ],
)
def test_the_axis_of_a_loss_names_its_unit_and_that_of_a_student_is_drawn_with_its_parts(training, job, parts, axis):
    (training / "job.json").write_text(json.dumps(job))
    lines = [",".join(("step", "loss", *parts)), *(f"{step},4.0" + ",4.0" * len(parts) for step in (10, 20))]
    (training / "history.csv").write_text("\n".join(lines) + "\n")
    (section,) = curves.make_sections([read_training(training)])
    plot = section["figures"][0]["plot"]
    assert f">{axis}<" in plot
    assert [name for name in parts if name.replace("_", " ") not in plot] == []


def test_curves_show_where_a_training_was_resumed_and_nothing_of_another_job(training):
    (training / "history.csv").write_text("step,loss\n10,4.0\n20,2.0\n30,1.0\n")
    step, plan = '{"event": "step", "step": %d, "real_tokens_per_second": 1}\n', '{"event": "plan"}\n'
    went_on = '{"event": "message", "text": "continuing", "continued": %d}\n'
    log = training / "job.log"
    log.write_text(plan + step % 10 + step % 20 + plan + went_on % 15 + step % 20 + step % 30)
    figures = read_training(training)
    assert figures.resumed == 15
    (section,) = curves.make_sections([figures])
    assert "resumed from update 15" in section["figures"][0]["note"]
    with log.open("a") as stream:
        stream.write(plan + step % 10)
    figures = read_training(training)
    assert (figures.resumed, curves.column_points(figures.steps, curves.SPEED)) == (0, [(10, 1)]), "from nothing"
    later = (training / "job.json").stat().st_mtime + 5
    assert read_training(training, later).history == {}, "a job of before the stage began"


@pytest.mark.parametrize("state", made_runs.STATES)
def test_the_page_of_a_run_of_the_demo_is_small_and_links_what_is_there(state, tmp_path):
    record, root = made_runs.run(tmp_path, state)
    for name in ("runs/of-a-test.html", "run.html"):
        page = root / "reports" / name
        page.parent.mkdir(exist_ok=True)
        page.write_text(run_page.render_run(RunView(record, root, at_work=state == "running"), copy=name[:4] == "runs"))
        (root / "reports/run.html").touch()
        assert page.stat().st_size < 400_000
        require_links(page)


@pytest.mark.parametrize("published", [True, False])
def test_what_was_published_without_a_floor_is_said_on_the_page_and_at_the_end(tmp_path, published):
    floor = "published without a floor: set downstream.squad.gate.min_f1"
    record, root = made_runs.run(tmp_path, "published")
    path = root / "metrics/squad-gate.json"
    files.write_json(path, files.read_json(path) | {"accepted": True, "reasons": [], "without_floor": floor})
    receipt = record.results["gate@squad"]["published"]
    record.read_results(root)
    record.results["gate@squad"]["published"] = receipt if published else None
    view = RunView(record, root)
    assert (f"\n{floor}" in run_view.format_end(view)) == published
    assert ("ublished without a floor" in run_page.render_run(view)) == published
    assert "without a floor" in run_view.render_gates(view)


def test_a_job_lies_on_its_ipus_with_what_each_keeps_and_its_share_of_memory():
    blocks = ["embeddings", "encoder layer 0", "encoder layer 1"]
    pipeline = [(0, blocks), (1, ["encoder layer 2"]), (0, ["MLM and NSP heads"])]
    for every_layer, kind, kept in (
        (True, "pretrain", [2, 1, 1]),
        (None, "finetune", [0, 0, 0]),
        (False, "finetune", [1, 1, 1]),
    ):
        layout = placement.describe_pipeline(pipeline, 3, every_layer, [0.15, 0.25], kind)
        assert [stage["stored"] for stage in layout["stages"]] == kept
    assert [(stage["ipu"], stage["blocks"]) for stage in layout["stages"]] == [
        *((0, ["embeddings", "layers 0 to 1"]), (1, ["layer 2"]), (0, ["MLM and NSP heads"]))
    ]
    assert layout["shares"] == [0.15, 0.25, None]


def test_a_prediction_shows_its_job_and_not_that_of_another_run_of_the_folder(tmp_path):
    job = {"kind": "predict", "sequences": 12, "train_seconds": 3.456, "plan": {"device": {"ipus": 4}}}
    files.write_json(tmp_path / "runs/squad-predict/dev/result.json", job)
    record = report.RunReport(".", stages=[report.StageRecord("predict@squad", "ran", 9.0)])
    figures, seconds, others = {"features": 12, "runtime": "ipu"}, {"predict_seconds": 3.46}, {"predict_seconds": 3.47}
    of_another = {**figures, **others}
    cases = (figures, seconds, job), ({"dev": figures}, {"dev": seconds}, job), (figures, others, of_another)
    for metrics, measured, expected in cases:
        files.write_json(tmp_path / "metrics/squad-predict.json", metrics)
        files.write_json(tmp_path / "measurements/squad-predict.json", measured)
        view = RunView(record, tmp_path)
        view.plan = read_plan(ROOT)
        assert view.jobs == {"predict@squad": expected}
