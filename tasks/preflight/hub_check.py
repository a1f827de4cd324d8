"""What the Hub says before a run: that the token may publish, and that what is to be read from there is there.

    python -m tasks.preflight.hub_check < REQUEST

REQUEST is JSON: `values`, the resolved parameters; `publish`, the repositories to publish to; `review`; `sources`, a
list of objects with `kind` (dataset or model), `section`, `name` and `revision`; and `origin`, whether README.md of a
base model on the Hub decides if a release may go there. Of each a line of JSON is printed (flows/preflight reads it).
Nothing is downloaded but README.md and config.json of that model, and nothing is made or changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.project.errors import InputError, PodiumError
from tasks.project.main import run_main
from tasks.project.params import Params, check
from tasks.project.process import takes_no_words

LATER = "A run with --no-publish starts without it, and podium publish follows"


def findings(told: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What was found: name, level and text."""
    if told["publish"]:
        found = _found("hub", lambda: _rights(told["publish"], told["review"]))
        yield found if found["level"] == "ok" else {**found, "text": f"{found['text']}. {LATER}"}
    if told["origin"]:
        found = _found("hub", lambda: _origin(check(told["values"])))
        yield found if found["level"] == "ok" else {**found, "of_parameters": True}
    for source in told["sources"]:
        found = _found("hub input", lambda source=source: _source(**source))
        yield found
        if source["section"] == "base_model" and found["level"] == "ok":
            yield from _head(check(told["values"]))


def _found(name: str, look: Any) -> dict[str, Any]:
    try:
        return {"name": name, "level": "ok", "text": look()}
    except PodiumError as error:
        return {"name": name, "level": "problem", "text": str(error)}


def _rights(repositories: list[str], review: bool) -> str:
    from tasks.release.hub.calls import Patience
    from tasks.release.hub.transaction import check_access

    # One try: whoever waits for the answer would rather know now.
    patience = Patience(attempts=1, connect_timeout_s=5.0, read_timeout_s=8.0)
    return check_access(repositories, review=review, patience=patience)


def _source(kind: str, section: str, name: str | None, revision: str | None) -> str:
    from tasks.reading.hub_inputs import check_dataset, download_files

    if kind == "dataset":
        check_dataset(section, name, revision)
    elif name:
        download_files(name, revision, lambda present: [], section)
    return f"{kind} {name} ({section})"


def _head(params: Params) -> Iterator[dict[str, Any]]:
    """Findings of the entries that start from the base model."""
    from tasks.preflight.given_inputs import of_downloaded
    from tasks.reading.hub_inputs import download_files
    from tasks.reading.model_folders import CONFIG

    base = params.base_model
    _, _, files = download_files(
        str(base.repository), base.revision, lambda names: [name for name in names if name == CONFIG], "base_model"
    )
    for config in files.values():
        yield from of_downloaded(params, config.parent)


def _origin(params: Params) -> str:
    from tasks.reading.hub_inputs import download_files
    from tasks.reading.model_card import FILES, read_origin
    from tasks.release.origin import require_origin, resolve_origin

    base = params.base_model
    try:
        _, _, files = download_files(
            str(base.repository), base.revision, lambda names: [name for name in names if name in FILES], "base_model"
        )
    except InputError as error:
        return f"licence and language are not known yet: {error}"  # said by `sources`, or a worker may read it
    found = read_origin(next(iter(files.values())).parent) if files else None
    require_origin(params, resolve_origin(params, found))
    return f"licence and language of {base.repository} or of section publish"


def main() -> None:
    takes_no_words("Ask the Hub what a run needs of it; a JSON object on standard input says what.")
    for finding in findings(json.load(sys.stdin)):
        print(json.dumps(finding), flush=True)


if __name__ == "__main__":
    run_main(main)
