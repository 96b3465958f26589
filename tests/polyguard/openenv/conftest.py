"""A real server on loopback, for the tests of this folder."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(cwd, port=None, **variables):
    """(process, url) of a server that answers; `cwd` is not the repository."""
    port = port or free_port()
    command = [sys.executable, "-m", "polyguard.server.app", "--port", str(port)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    server = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return server, url
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, server.stderr.read().decode()[-2000:]
            time.sleep(0.1)
    server.kill()
    raise AssertionError("the server did not come up")


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """(url, folder of traces) of a server with two sessions more than the tests hold open."""
    folder = tmp_path_factory.mktemp("served")
    server, url = start(folder, POLYGUARD_MAX_SESSIONS="4", POLYGUARD_TRACES=str(folder / "traces"))
    yield url, folder / "traces"
    server.terminate()
    server.wait(20)
    server.stderr.close()


@pytest.fixture
def url(served):
    return served[0]
