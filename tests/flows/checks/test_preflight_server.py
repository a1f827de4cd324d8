"""A Prefect server that is named: what answers there, looked at before a run, on real servers."""

import contextlib
import http.server
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.checks.server import check_server
from tests.flows.checks.conftest import look
from tests.places import ROOT


@contextlib.contextmanager
def serving(handler, certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}/api"
    finally:
        server.shutdown()
        server.server_close()


class Answers(http.server.BaseHTTPRequestHandler):
    status, body = 200, b'"3.8.8"'

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "body", "said", "required"),
    [
        (404, b"{}", "answers 404", None),
        (200, b"<html>", "is not a Prefect API", None),
        (401, b"{}", "PREFECT_API_AUTH_STRING", None),
        (200, b'"3.4.0"', r"is 3\.4\.0; .* require Prefect 3\.8 or newer", True),
        (200, b'"3.8.0"', "Prefect 3.8.0 at ", False),
        (200, b'"3.10.1"', "Prefect 3.10.1 at ", False),
    ],
)
def test_a_server_that_is_none_or_older_than_the_client_is_refused_before_anything_is_created_there(
    status, body, said, required
):
    with (
        serving(type("Server", (Answers,), {"status": status, "body": body})) as url,
        temporary_settings({PREFECT_API_URL: url}),
    ):
        strict, plain = (check_server(required=one) for one in (True, False))
    assert re.search(said, strict.text)
    assert (strict.level == "ok", plain.level == "ok") == (required is False, required is not None)


def test_a_run_asks_the_server_that_is_named(project, monkeypatch):
    with serving(Answers) as url:
        monkeypatch.setenv("PREFECT_API_URL", url)
        assert look(project)["server", "ok"] == f"Prefect 3.8.8 at {url}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_that_nobody_signed_is_said(tmp_path):
    both = tmp_path / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", both, "-out", tmp_path / "crt.pem",
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(both.read_bytes() + (tmp_path / "crt.pem").read_bytes())
    with serving(Answers, both) as url:
        for trusted, level in (({}, "problem"), ({"SSL_CERT_FILE": str(tmp_path / "crt.pem")}, "ok")):
            found = subprocess.run(
                [sys.executable, "-m", "flows.checks.server"],
                input='{"required": false}',
                env={**os.environ, "PREFECT_API_URL": url, **trusted},
                text=True,
                capture_output=True,
                cwd=ROOT,
            )
            assert json.loads(found.stdout)["level"] == level, found.stdout + found.stderr
            assert ("certificate" in found.stdout.lower()) == (level == "problem")
