"""Runs that a person starts in the form of a deployment: typed in a browser, sent by a real server, done by workers."""

import re
import subprocess

import pytest
from playwright.sync_api import expect
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from flows.runs.report import read_revision
from flows.views.run_view import PAGES_URL
from tests.browser import chromium
from tests.browser.prefect_forms import SECONDS, Form, UiServer
from tests.flows.workers.worker_hosts import ALL, wait_until
from tests.flows.workers.worker_team import a_team

pytestmark = pytest.mark.soak
CHECKS = [{"name": "exact_match", "ok": True, "found": 90.0, "required": 50.0}]
PAGES = "https://pages.example.org/podium"


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A host whose worker sends, and one whose worker does the stages; they say how far they are, gates check."""
    chromium.installed()
    with a_team(tmp_path_factory.mktemp("team"), UiServer) as team:
        hosts = {"flows": team.sender, "cpu": team.host("working")}
        for host in hosts.values():
            toy = host.project / "tasks/toy.py"
            text = toy.read_text().replace('"reasons": []', f'"checks": {CHECKS!r}, "reasons": []')
            toy.write_text(
                text.replace("def main():", 'def main():\n    report("progress", percent=50, text="half of it")')
            )
        _kept_by_git(team.sender.project)
        team.sender.environment[PAGES_URL] = PAGES
        for pool, host in hosts.items():
            host.start_worker(pool, "default", "cpu")
        yield team


def _kept_by_git(project):
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "flows", "tasks", "params.yaml"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)


@pytest.fixture
def form(team, browser):
    with chromium.window(browser) as page, get_client(sync_client=True) as client:
        page.set_default_timeout(SECONDS)
        deployment = client.read_deployment_by_name("podium/podium")
        yield Form(page, f"{team.server.pages}/deployments/deployment/{deployment.id}/run")


def ended(run):
    with get_client(sync_client=True) as client:

        def over():
            found = client.read_flow_run(run)
            return found if found.state and found.state.is_final() else None

        return wait_until(over, "the end of the run", seconds=400)


def artifacts_of(runs):
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=runs)))


def test_a_run_of_the_form_ends_on_workers_with_its_name_tags_and_tables(team, form):
    form.choose("preset", "finetune")
    form.choose("preset", "params.yaml")
    form.choose("part", "pretraining")
    form.add("overrides")
    form.write("overrides", "pretrain.seed=7")
    form.add("overrides")  # and nothing written into it
    form.write("name", "evening\n")
    form.choose("part", "all")
    run = ended(form.submit())
    assert run.state.is_completed(), run.state.message
    assert run.state.message == "published"
    assert re.fullmatch(r"evening exact_match 90\.00 \d{4}-\d\d-\d\d \d\d:\d\d", run.name)
    commit, _ = read_revision(team.sender.project)
    tags = {"podium-watched", "podium-sent-again", "task:squad", "device:cpu"}
    assert set(run.tags) == {*tags, f"commit:{commit}"}
    assert team.hosts["working"].ran() == ALL
    tables = {str(one.key): str(one.data) for one in artifacts_of([run.id])}
    assert set(tables) == {"podium-run", "podium-metrics", "podium-gate"}
    assert "- **parameters**: params.yaml --set pretrain.seed=7\n" in tables["podium-run"]
    assert f"{PAGES}/runs/checkouts/evening/reports/run.html" in tables["podium-run"]
    assert re.search(r"exact\\?_match", tables["podium-gate"])
    form.page.goto(f"{team.server.pages}/runs")
    expect(form.page.get_by_text(run.name).first).to_be_visible(timeout=SECONDS)
    (sent,) = team.runs("COMPLETED").keys() - {run.name}
    shares = [one for one in artifacts_of([team.runs("COMPLETED")[sent].id]) if one.type == "progress"]
    assert {one.description for one in shares} == {f"{name}: percentage of rows done" for name in ALL}


def test_a_wrong_value_ends_the_run_with_words_that_say_what_to_write(form):
    form.add("overrides")
    form.write("overrides", "pretrain.sed=7")
    run = ended(form.submit())
    assert re.fullmatch(r"[\w.-]+ refused \d{4}-\d\d-\d\d \d\d:\d\d", run.name), "the name that the form proposed"
    assert run.state.is_failed()
    said = "--set pretrain.sed=7: pretrain.sed is not known; did you mean seed?"
    assert run.state.message == said
    form.open_run(run.id)
    expect(form.page.get_by_text(said, exact=True)).to_be_visible(timeout=SECONDS)
