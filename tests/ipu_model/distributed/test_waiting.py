"""A process that waits for others at the start of a training: SIGTERM and the end of its parent end it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import List

import pytest
from tiny_jobs import ROOT

WAITS = """
import os, sys
from ipu_model.distributed.process import StopRequest, die_with_parent
from ipu_model.distributed.torchrun import detect_torchrun
StopRequest().listen()
die_with_parent()
instances = detect_torchrun(os.environ)
import torch.distributed.rendezvous
module = sys.modules["torch.distributed.rendezvous"]
meets = module.rendezvous
def rendezvous(*words, **more):
    print("waits", flush=True)
    return meets(*words, **more)
module.rendezvous = rendezvous
instances.join("cpu")
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.mark.parametrize("words", [["-c", WAITS], ["-c", PARENT, WAITS]], ids=["signal", "parent"])
def test_a_process_that_waits_for_others_ends_at_once(words: List[str]) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = {**os.environ, **place, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    assert process.stdout.read() == b""  # ends when the one that waits has ended
