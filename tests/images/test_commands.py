"""Which builder is used, and what it is told."""

from pathlib import Path

import pytest

from e2e.images.commands import Builder, BuildRequest, build_arguments, choose_builder, skips_tls
from e2e.images.inputs import TorchBuild
from e2e.images.targets import ImageError, Target, image_name, parse_target

BUILDAH, DOCKER, PODMAN = Builder

CHOICES = {
    "buildah first: root on Linux": (None, {BUILDAH, DOCKER}, True, BUILDAH),
    "a laptop with docker": (None, {DOCKER, PODMAN}, False, DOCKER),
    "a laptop with podman": (None, {PODMAN}, False, PODMAN),
    "docker that works goes before a buildah to install": (None, {DOCKER}, True, DOCKER),
    "nothing but root: buildah gets installed": (None, set(), True, BUILDAH),
    "a wish is followed": ("podman", {BUILDAH, DOCKER, PODMAN}, True, PODMAN),
    "a wish for buildah where it can be installed": ("buildah", {DOCKER}, True, BUILDAH),
    "an empty wish is none": ("", {DOCKER}, False, DOCKER),
}


@pytest.mark.parametrize(("wanted", "working", "can_install", "want"), CHOICES.values(), ids=CHOICES.keys())
def test_choose_builder(wanted, working, can_install, want):
    assert choose_builder(wanted, working, can_install) is want


REFUSED = {
    "nothing works": (None, set(), False, "apt-get install buildah debootstrap"),
    "an unknown name": ("kaniko", {DOCKER}, True, "ENGINE=kaniko: choose from buildah, docker, podman"),
    "a wish that does not work here": ("docker", {BUILDAH}, True, "ENGINE=docker: it does not work here"),
}


@pytest.mark.parametrize(("wanted", "working", "can_install", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_no_builder(wanted, working, can_install, message):
    with pytest.raises(ImageError, match=message):
        choose_builder(wanted, working, can_install)


def request(target, torch, base=None):
    return BuildRequest(
        root=Path("/src"), target=target, base=base, version="1.2.3", torch=torch, tags=("a:1", "a:demo"),
        secrets={"pip-config": Path("/s/pip.conf")},
    )  # fmt: skip


CPU = TorchBuild(version="2.13.0+cpu", wheel=Path("/wheels/torch-2.13.0+cpu.whl"))
REGISTRY = TorchBuild(version="2.13.0", wheel=None)
COMMON = ["--secret", "id=pip-config,src=/s/pip.conf", "--tag", "a:1", "--tag", "a:demo", "/src"]
ARGUMENTS = {
    "the operator is told nothing about torch": (
        request(Target.OPERATOR, CPU),
        ["--target", "operator", "--build-arg", "VERSION=1.2.3"],
    ),
    "an engine from a folder of wheels": (
        request(Target.ENGINE, CPU, base="base:1"),
        [
            *("--target", "engine", "--build-context", "wheels=/wheels", "--build-arg", "VERSION=1.2.3"),
            *("--build-arg", "BASE=base:1", "--build-arg", "TORCH=2.13.0+cpu"),
        ],
    ),
    "an engine from the registry": (
        request(Target.ENGINE_DEMO, REGISTRY),
        ["--target", "engine-demo", "--build-arg", "VERSION=1.2.3", "--build-arg", "TORCH=2.13.0"],
    ),
}


@pytest.mark.parametrize(("asked", "want"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_build_arguments(asked, want):
    assert build_arguments(asked) == ["--file", "/src/Containerfile", *want, *COMMON]


NAMES = {
    "on this machine": (None, "localhost/pagefleet/engine-demo:0123456789ab"),
    "in a registry": ("registry.example.com/team/", "registry.example.com/team/pagefleet/engine-demo:0123456789ab"),
    "in a registry with a port": ("localhost:5000", "localhost:5000/pagefleet/engine-demo:0123456789ab"),
}


@pytest.mark.parametrize(("registry", "want"), NAMES.values(), ids=NAMES.keys())
def test_image_name(registry, want):
    assert image_name(Target.ENGINE_DEMO, "0123456789ab", registry) == want


def test_an_unknown_target_is_refused_with_the_choice():
    with pytest.raises(ImageError, match="there is no image 'web': choose from operator, engine, engine-demo"):
        parse_target("web")


@pytest.mark.parametrize(
    ("reference", "want"),
    [
        ("localhost:5000/a/b:1", True),
        ("127.0.0.1:5000/a:1", True),
        ("registry.example.com/a:1", False),
        ("[::1]:5000/a", True),
    ],
)
def test_only_a_registry_on_this_machine_may_do_without_tls(reference, want):
    assert skips_tls(reference) is want
