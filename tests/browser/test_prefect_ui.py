"""Prefect's own pages, on a real server: the form that starts a run, the tables of one that ended."""

import pytest
from playwright.sync_api import expect
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Failed
from prefect.utilities.callables import parameter_schema

from flows.pipeline import pipeline
from flows.views import run_view
from flows.views.run_view import RunView
from tasks.params.overlays import list_preset_names
from tests.browser import chromium, made_runs
from tests.browser.planted import SHOWN
from tests.browser.ui_server import WAIT_MS, UiServer
from tests.places import ROOT


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Addresses of its pages, with a deployment of the flow, and a run that ended with tables."""
    chromium.installed()  # no server where there is nothing to look with
    folder = tmp_path_factory.mktemp("prefect")
    running = UiServer(folder / "server")
    try:
        with temporary_settings({PREFECT_API_URL: running.url}), get_client(sync_client=True) as client:
            yield {name: f"{running.pages}/{page}" for name, page in _filled(client, folder).items()}
    finally:
        running.stop()


def _filled(client, folder):
    schema = parameter_schema(pipeline).model_dump()
    deployment = client.create_deployment(client.create_flow(pipeline), "podium", parameter_openapi_schema=schema)
    report, root = made_runs.run(folder / "project", "rejected")
    view = RunView(report, root)
    run = client.create_flow_run(pipeline, name="evening", state=Failed(name="Rejected"))
    pages = {"form": f"deployments/deployment/{deployment}/run"}
    texts = {"run": run_view.render_summary, "metrics": run_view.render_metrics, "gate": run_view.render_gates}
    for what, render in texts.items():
        made = client.create_artifact(
            ArtifactCreate(key=f"podium-{what}", type="markdown", data=render(view), flow_run_id=run.id)
        )
        pages[what] = f"artifacts/artifact/{made.id}"
    return pages


@pytest.fixture
def page(server, browser):
    """A page that may ask the server alone."""
    outside = []
    with chromium.window(browser) as window:
        window.set_default_timeout(WAIT_MS)
        window.on("request", lambda request: outside.append(request.url))
        yield window
    address = server["form"].split("/deployments")[0]
    assert [url for url in outside if not url.removeprefix("blob:").startswith(address)] == []


def test_the_form_offers_presets_by_name_and_says_what_each_parameter_is(server, page):
    page.goto(server["form"])
    expect(page.get_by_text("A preset that extends the defaults")).to_be_visible(timeout=WAIT_MS)
    shown = " ".join(page.inner_text("body").split())
    described = parameter_schema(pipeline).model_dump()["properties"]
    for name, about in described.items():
        assert name in shown
        assert " ".join(about["description"].replace("`", "").split())[:30] in shown, name
    assert 'Property is type "None"' not in shown
    page.locator(".p-select-button__control").first.press("ArrowDown")
    for preset in list_preset_names(ROOT / "presets")[:3]:
        expect(page.get_by_text(preset, exact=True).first).to_be_visible(timeout=WAIT_MS)


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("run", ("stage", "status", "seconds", "host")),
        ("metrics", ("metric", "score", "95% interval", "floor")),
        ("gate", ("check", "value", "required", "margin", "verdict")),
    ],
)
def test_an_artifact_is_tables_in_which_text_of_a_user_is_text(server, page, name, heads):
    page.goto(server[name])
    expect(page.locator("table").first).to_be_visible(timeout=WAIT_MS)
    assert set(heads) <= {head.strip() for head in page.locator("table th").all_inner_texts()}
    assert page.evaluate("window.planted") is None
    assert page.locator("[data-planted]").count() == 0
    if name != "metrics":
        assert SHOWN in page.inner_text("body")
