"""Runs that a person starts in the form of a deployment: typed in a browser, sent by a real server, done by workers."""

import re
import subprocess
from uuid import UUID

import pytest
from playwright.sync_api import expect
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from flows.runs.report import read_revision
from flows.views.run_view import PAGES_URL
from tests.browser import chromium
from tests.browser.ui_server import WAIT_MS, UiServer
from tests.flows.workers.worker_hosts import ALL, wait_until
from tests.flows.workers.worker_team import a_team

pytestmark = pytest.mark.soak
CHECKS = [{"name": "exact_match", "ok": True, "found": 90.0, "required": 50.0}]
PAGES = "https://pages.example.org/podium"


class Form:
    def __init__(self, page, address):
        self.page = page
        page.goto(address)
        expect(page.get_by_text("A preset that extends the defaults")).to_be_visible(timeout=WAIT_MS)

    def field(self, name):
        return self.page.locator(".schema-form-property").filter(has_text=re.compile(rf"^\s*{name} \(Optional\)"))

    def write(self, name, text):
        self.field(name).locator("textarea").last.click()
        self.page.keyboard.type(text)

    def choose(self, name, value):
        """Open a select with the keyboard, look for a value and take it."""
        self.field(name).locator(".p-select-button__control").press("ArrowDown")
        self.page.get_by_placeholder("Search").fill(value)
        self.page.locator(".p-select-option").filter(has_text=re.compile(rf"^\s*{re.escape(value)}\s*$")).click()

    def add(self, name):
        self.field(name).get_by_role("button", name="Add item").click()

    def submit(self):
        # The note with a link to the run goes away by itself, before a busy host has clicked on it.
        with self.page.expect_response(re.compile("/create_flow_run$"), timeout=WAIT_MS) as answer:
            self.page.get_by_role("button", name="Submit").click()
        return UUID(answer.value.json()["id"])


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
        git = ["git", "-C", str(team.sender.project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
        for words in (["init", "-q"], ["add", "flows", "tasks", "params.yaml"], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], check=True)
        team.sender.environment[PAGES_URL] = PAGES
        for pool, host in hosts.items():
            host.start_worker(pool, "default", "cpu")
        yield team


@pytest.fixture
def form(team, browser):
    with chromium.window(browser) as page, get_client(sync_client=True) as client:
        page.set_default_timeout(WAIT_MS)
        deployment = client.read_deployment_by_name("podium/podium")
        yield Form(page, f"{team.server.pages}/deployments/deployment/{deployment.id}/run")


def ended(run):
    with get_client(sync_client=True) as client:

        def over():
            read = client.read_flow_run(run)
            return read if read.state and read.state.is_final() else None

        return wait_until(over, "the end of the run", seconds=400)


def artifacts_of(run):
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id])))


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
    assert set(run.tags) == {"podium-watched", "podium-sent-again", "task:squad", "device:cpu", f"commit:{commit}"}
    assert team.hosts["working"].ran() == ALL
    tables = {str(artifact.key): str(artifact.data) for artifact in artifacts_of(run)}
    assert set(tables) == {"podium-run", "podium-metrics", "podium-gate"}
    assert "- **parameters**: params.yaml --set pretrain.seed=7\n" in tables["podium-run"]
    assert f"{PAGES}/runs/checkouts/evening/reports/run.html" in tables["podium-run"]
    assert re.search(r"exact\\?_match", tables["podium-gate"])
    form.page.goto(f"{team.server.pages}/runs")
    expect(form.page.get_by_text(run.name).first).to_be_visible(timeout=WAIT_MS)
    (sent,) = team.runs("COMPLETED").keys() - {run.name}
    shares = [share for share in artifacts_of(team.runs("COMPLETED")[sent]) if share.type == "progress"]
    assert {share.description for share in shares} == {f"{name}: percentage of rows done" for name in ALL}


def test_a_wrong_value_ends_the_run_with_words_that_say_what_to_write(team, form):
    form.add("overrides")
    form.write("overrides", "pretrain.sed=7")
    run = ended(form.submit())
    assert re.fullmatch(r"[\w.-]+ refused \d{4}-\d\d-\d\d \d\d:\d\d", run.name), "the name that the form proposed"
    assert run.state.is_failed()
    message = "--set pretrain.sed=7: pretrain.sed is not known; did you mean seed?"
    assert run.state.message == message
    form.page.goto(f"{team.server.pages}/runs/flow-run/{run.id}")
    expect(form.page.get_by_text(message, exact=True)).to_be_visible(timeout=WAIT_MS)
