"""A run that publishes to the Hub needs a licence and a language before its first stage; a folder needs neither."""

import pytest

from tasks.stage.errors import ParamsError
from tests.flows.checks.preflight_project import (
    HUB,
    empty_clone,  # noqa: F401 (the fixture `project`)
    look,
    refuse,
    write_config,
)
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)

UNSTATED = ("publish.license=null", "publish.language=null")
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CARD = "---\nlicense: mit\nlanguage: en\n---\n"
ADD = "--set publish.license=apache-2.0 --set publish.language=en"


def refused(project, *overrides, **choices):
    error = refuse(project, *overrides, **choices)
    assert isinstance(error, ParamsError)
    return str(error)


@pytest.mark.soak
def test_a_model_from_scratch_states_its_own(project, hub):
    assert ("hub", "problem") not in look(project, *HUB)
    said = refused(project, *HUB, *UNSTATED)
    assert "the licence and the language of the model are not set. A release on the Hub needs both: set the" in said
    assert ADD in said
    said = refused(project, *HUB, UNSTATED[1])
    assert "the language of the model is not set" in said
    assert "publish.license" not in said
    assert ADD in refused(project, *HUB, *UNSTATED, on_workers=True), "known here, wherever stages run"
    assert ("hub", "problem") not in look(project, *HUB, *UNSTATED, publish=False)
    assert ("hub", "problem") not in look(project, *UNSTATED), "to a folder"


@pytest.mark.soak
def test_the_card_of_a_given_folder_answers(project, hub, tmp_path):
    folder = write_config(tmp_path / "model", **SIZES)
    given = (*HUB, *UNSTATED, "base_model.source=folder", f"base_model.path={folder}")
    said = refused(project, *given)
    assert "are not set, and the base model's README.md does not state it" in said
    assert ADD in said
    assert ADD in refused(project, *given, on_workers=True)
    gone = look(project, *given, f"base_model.path={tmp_path / 'on-the-worker'}", on_workers=True)
    assert ("hub", "problem") not in gone
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    assert "the language of the model is not set, and the base model" in refused(project, *given)
    assert ("hub", "problem") not in look(project, *given, "publish.language=am")
    (folder / "README.md").write_text(CARD)
    found = look(project, *given)
    assert ("hub", "problem") not in found
    assert "set its name, for example --set publish.base_model=user/name" in found["hub", "warning"]
    assert ("hub", "warning") not in look(project, *given, "publish.base_model=user/base")


@pytest.mark.parametrize("card", [None, CARD])
def test_the_card_of_a_model_on_the_hub_answers(project, hub, card):
    model = hub.store.create("model", "user/model")
    hub.store.add_files(model, {"config.json": b"{}"} | ({} if card is None else {"README.md": card.encode()}))
    given = (*HUB, *UNSTATED, "base_model.source=hub", "base_model.repository=user/model")
    if card is not None:
        assert ("hub", "problem") not in look(project, *given)
        return
    assert ADD in refused(project, *given)
    found = look(project, *given, "base_model.repository=user/none")
    assert ("hub", "problem") not in found, "said once, as an input"
    assert found["hub input", "problem"].startswith("base_model.repository=user/none")
