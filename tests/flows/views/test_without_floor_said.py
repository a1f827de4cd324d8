"""A run whose model was published without a floor says so: at its end, on its page and on Prefect's."""

import json

import pytest

from flows.runs import report
from flows.views import run_page, run_view
from flows.views.run_view import RunView
from tasks.plan.plan_file import read_plan
from tests.browser import made_runs

SAID = "published without a floor: set downstream.squad.gate.min_f1 to require a score"


def finished(folder, **verdict):
    """A run that published, with more in the verdict of its gate, as the run reads it."""
    record, root = made_runs.run(folder, "published")
    path = root / "metrics/squad-gate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"accepted": True, "reasons": []} | verdict))
    plan = read_plan(root)
    found = report._read_result(plan["gate@squad"], plan, root)
    record.results = {"gate@squad": {**found, "published": record.results["gate@squad"]["published"]}}
    return record, root


@pytest.mark.parametrize("without", [True, False])
def test_summary_page_and_table_of_the_gate_say_it(tmp_path, without):
    record, root = finished(tmp_path, **({"without_floor": SAID} if without else {}))
    assert (f"\n{SAID}" in run_view.format_end(RunView(record, root))) == without
    page = run_page.render_run(RunView(record, root))
    assert (f'<p class="warn">P{SAID[1:]}.</p>' in page) == without
    assert ("without a floor" in run_view.render_gates(RunView(record, root))) == without


def test_what_was_not_published_is_not_said_to_be(tmp_path):
    record, root = finished(tmp_path, without_floor=SAID)
    record.results["gate@squad"]["published"] = None
    assert SAID not in run_view.format_end(RunView(record, root))
    assert "ublished without a floor" not in run_page.render_run(RunView(record, root))
