"""A Prefect server with its pages, and the form of a deployment as a person fills it in."""

import re
from uuid import UUID

from playwright.sync_api import expect

from tests.flows.workers.worker_hosts import Server

SECONDS = 30_000
"""Milliseconds that a page of the server may take on a busy host; it is waited for no longer than it takes."""


class UiServer(Server):
    def environment(self):
        return {**super().environment(), "PREFECT_SERVER_UI_ENABLED": "true", "PREFECT_UI_API_URL": self.url}

    @property
    def pages(self):
        return self.url.removesuffix("/api")


class Form:
    def __init__(self, page, address):
        self.page, self._pages = page, address.partition("/deployments/")[0]
        page.goto(address)
        expect(page.get_by_text("A preset that extends the defaults")).to_be_visible(timeout=SECONDS)

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
        with self.page.expect_response(re.compile("/create_flow_run$"), timeout=SECONDS) as answer:
            self.page.get_by_role("button", name="Submit").click()
        return UUID(answer.value.json()["id"])

    def open_run(self, run):
        self.page.goto(f"{self._pages}/runs/flow-run/{run}")
