"""What a run asks the Hub for before it starts: never what lies on this host."""

import pytest

from flows.checks import preflight
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tests.places import ROOT


def asked_for(*overrides):
    wanted = resolve_request(ROOT, RunOptions(None, overrides))
    return [source["name"] for question in preflight.probe_hub(wanted) for source in question.request["sources"]]


@pytest.mark.parametrize(
    ("place", "stated"),
    [("tokenizer.repository", ["tokenizer.source=hub"]), ("corpus.dataset", ["corpus.source=hub"])],
)
def test_a_folder_of_this_host_is_not_asked_of_the_hub(place, stated, tmp_path):
    assert asked_for(*stated, f"{place}={tmp_path}") == []
    assert asked_for(*stated, f"{place}=user/name") == ["user/name"]
