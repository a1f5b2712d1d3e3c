"""Tests of the operator from another language: it runs as the process that is shipped, on `coxswain test-server`.

OPERATOR is the operator's program, COXSWAIN the server's.
"""

import os
import pathlib
import socket
import subprocess
import sys
import unittest
import urllib.error

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parent / "test-server"))

from testserver import ControlPlane, eventually  # noqa: E402

SITES = "/apis/example.com/v1/namespaces/default/sites"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def site(name, domain):
    return {
        "apiVersion": "example.com/v1",
        "kind": "Site",
        "metadata": {"name": name},
        "spec": {"domain": domain, "pages": {"index.html": "<h1>Hello</h1>"}},
    }


class OperatorTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = ControlPlane("--crds", str(here / "manifests" / "sites.example.com.yaml")).start()
        cls.addClassCleanup(cls.cluster.stop)
        operator = subprocess.Popen(
            [os.environ["OPERATOR"], "--kubeconfig", cls.cluster.kubeconfig, "--webhook-port", str(free_port())])
        cls.addClassCleanup(operator.wait)
        cls.addClassCleanup(operator.terminate)
        eventually(cls.webhooks_answer)

    @classmethod
    def webhooks_answer(cls):
        """Raises an AssertionError until the operator's webhook sets the default of a site."""
        try:
            asked = cls.cluster.request("POST", SITES + "?dryRun=All", site("asked", ""))
        except urllib.error.HTTPError as error:
            raise AssertionError("the webhooks are not served yet") from error
        assert asked["spec"]["domain"] == "asked.default.example.org"

    def ready(self, name):
        def check():
            conditions = self.cluster.get(f"{SITES}/{name}").get("status", {}).get("conditions", [])
            self.assertIn(("Ready", "True"), [(c["type"], c["status"]) for c in conditions])

        eventually(check)

    def test_a_site_is_served_scaled_and_deleted(self):
        self.cluster.request("POST", SITES, site("blog", "blog.example.org"))
        self.ready("blog")
        self.assertEqual(self.cluster.get(f"{DEPLOYMENTS}/blog")["status"]["readyReplicas"], 1)

        self.cluster.request("PATCH", f"{SITES}/blog", {"spec": {"replicas": 3}}, "application/merge-patch+json")
        eventually(lambda: self.assertEqual(
            self.cluster.get(f"{DEPLOYMENTS}/blog")["status"].get("readyReplicas"), 3))

        self.cluster.request("DELETE", f"{SITES}/blog")
        eventually(lambda: self.assertIsNone(self.cluster.get(f"{SITES}/blog")))
        eventually(lambda: self.assertIsNone(self.cluster.get(f"{DEPLOYMENTS}/blog")), seconds=60)

    def test_a_protected_site_is_not_deleted(self):
        protected = site("kept", "kept.example.org")
        protected["metadata"]["annotations"] = {"example.com/protected": "true"}
        self.cluster.request("POST", SITES, protected)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.cluster.request("DELETE", SITES + "/kept")
        self.assertEqual(refused.exception.code, 403)
        self.assertIn("it is protected", refused.exception.read().decode())
        refused.exception.close()


if __name__ == "__main__":
    unittest.main()
