"""The Prefect server that a run reports to, where one is named.

    python -m flows.preflight.server

asks it, with the settings that the run itself would use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from flows.preflight.finding import Finding, Wanted, ok, problem
from flows.preflight.network import is_usable
from flows.preflight.question import FAR_S, Question
from tasks.project.process import takes_no_words

URL = "PREFECT_API_URL"
SECONDS = 5.0


def known(wanted: Wanted) -> Iterator[Finding]:
    """That a run which sends stages to workers needs one."""
    if may_be_named():
        return
    if wanted.on_workers:
        yield problem("server", f"--on-workers needs a Prefect server: name it in {URL} (docs/workers.md)")
    elif wanted.curious:
        yield ok("server", f"none is named ({URL}): a run has one of its own, which ends with it")


def asked(wanted: Wanted) -> Iterator[Question]:
    """The server itself."""
    if may_be_named() and is_usable():
        yield Question("server", "flows.preflight.server", {"required": wanted.on_workers}, FAR_S)


def may_be_named() -> bool:
    """Whether the environment or a profile names a server: Prefect's settings, which know, take a second to import."""
    if os.environ.get(URL):
        return True
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        return URL in profiles.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _look(required: bool) -> Finding:
    os.environ["PREFECT_CLIENT_MAX_RETRIES"] = "0"  # before Prefect is imported
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        if required:
            return problem("server", f"--on-workers needs a Prefect server: name it in {URL} (docs/workers.md)")
        return ok("server", f"none is named ({URL}): a run has one of its own, which ends with it")
    knob = f"start it or correct {URL}" + ("" if required else ", or unset it: a run then has a server of its own")
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": SECONDS}) as client:
            version = client.api_version()
    except httpx.TransportError as error:
        return problem("server", f"{URL}={url} does not answer ({_reason(error)}): {knob}")
    except PrefectHTTPStatusError as error:
        said = f"answers {error.response.status_code}, as no Prefect API does"
        if error.response.status_code in (401, 403):
            said = "asks for a right (PREFECT_API_KEY, PREFECT_API_AUTH_STRING)"
        return problem("server", f"{URL}={url} {said}; it ends in /api: {knob}")
    except ValueError:  # no JSON
        return problem("server", f"{URL}={url} is no Prefect API, which ends in /api: {knob}")
    return ok("server", f"Prefect {version} at {url}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def main() -> None:
    takes_no_words("Ask the Prefect server that PREFECT_API_URL names whether it is one.")
    print(json.dumps(asdict(_look(json.load(sys.stdin)["required"]))), flush=True)


if __name__ == "__main__":
    main()
