"""The real cluster for the tests: one of their own, with images built from this tree and the operator by Helm.

It runs beside the one of `make demo`, if that is up, and shares only the built programs with it.
Where it cannot run the tests are skipped and say what is missing; with CI=true that is a failure.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest

import e2e.cluster.api as local_cluster
import e2e.images as images
from e2e import demo
from e2e.cluster.folders import user_folders
from e2e.kube import Kube

RunKubectl = Callable[..., "CompletedProcess[str]"]


@pytest.fixture(scope="session")
def able_machine() -> None:
    """A machine that can run clusters."""
    missing = local_cluster.problems()
    if missing and os.environ.get("CI") == "true":
        pytest.fail("the e2e tier cannot run: " + "; ".join(missing))
    if missing:
        pytest.skip("needs a machine for the local cluster: " + "; ".join(missing))
    local_cluster.prepare_machine()


@pytest.fixture(scope="session")
def cluster(able_machine: None) -> Iterator[local_cluster.Cluster]:
    """The tests' own cluster, started empty. Its loaded images stay for the next run."""
    folders = dataclasses.replace(user_folders(), state=user_folders().state.with_name("e2e"))
    local_cluster.down(folders=folders)
    yield local_cluster.up(folders=folders)
    local_cluster.down(folders=folders)


@pytest.fixture(scope="session")
def kube(cluster: local_cluster.Cluster) -> Kube:
    """kubectl and helm against it."""
    tools = local_cluster.ensure_client_tools()
    return Kube(kubectl_path=tools.kubectl, helm_path=tools.helm, kubeconfig=cluster.kubeconfig)


@pytest.fixture(scope="session")
def kubectl(kube: Kube) -> RunKubectl:
    """`kubectl(*words, stdin=None, check=True)`."""
    return kube.kubectl


@pytest.fixture(scope="session")
def built_images(cluster: local_cluster.Cluster) -> dict[str, str]:
    """References of the images of this tree, by target, loaded into the cluster."""
    built = images.build(["operator", "engine-demo"])
    for image in built.values():
        cluster.load_image(image.archive, image.ref)
    return {target: image.ref for target, image in built.items()}


@pytest.fixture(scope="session")
def operator(kube: Kube, built_images: dict[str, str]) -> None:
    """The operator of this tree, running in the cluster."""
    demo.install_operator(kube, built_images["operator"])


@pytest.fixture(scope="module")
def namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test module's own, with the restricted profile enforced."""
    name = request.module.__name__.rsplit(".", 1)[-1].replace("_", "-")
    kube.kubectl("delete", "namespace", name, "--ignore-not-found")
    kube.kubectl("create", "namespace", name)
    kube.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    # Services first, and waiting for no more than them: the namespace controller takes minutes to find their kind.
    kube.kubectl("delete", "llms", "--all", "-n", name, check=False)
    kube.kubectl("delete", "namespace", name, "--wait=false")
