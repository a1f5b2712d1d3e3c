"""A Kubernetes control plane for Python tests: `coxswain test-server` and a client, with the standard library alone.

    class MyTest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.cluster = testserver.ControlPlane("--crds", "manifests").start()
            cls.addClassCleanup(cls.cluster.stop)

        def test_something(self):
            self.cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})

COXSWAIN is the program; by default the one on the PATH.
"""

import json
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request


class ControlPlane:
    """A control plane that lives from start to stop, or in a with statement; not longer than this process."""

    def __init__(self, *flags):
        self.command = [os.environ.get("COXSWAIN", "coxswain"), "test-server", "--json", *flags]

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.command} ended with {self.process.wait()}")
        self.address = json.loads(line)
        self.kubeconfig = self.address["kubeconfig"]
        self.context = ssl.create_default_context(cafile=self.address["ca"])
        return self

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    __enter__ = start

    def __exit__(self, *_):
        self.stop()

    def request(self, method, path, body=None, content_type="application/json"):
        """Sends a request as the administrator and returns the decoded answer; an error is an HTTPError."""
        request = urllib.request.Request(
            self.address["endpoint"] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer " + self.address["token"], "Content-Type": content_type},
        )
        with urllib.request.urlopen(request, context=self.context) as response:
            return json.load(response)

    def get(self, path):
        """Returns the object at a path, None if there is none."""
        try:
            return self.request("GET", path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def eventually(check, seconds=30):
    """Calls check until it raises no AssertionError, and returns its result."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)
