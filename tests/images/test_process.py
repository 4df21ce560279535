"""What a person sees of a builder's output, and how a failed command is reported."""

import os
import sys

import pytest

from e2e.images.base import find_mirror
from e2e.images.process import APART, capture, describe, progress_line, run_logged, succeeds
from e2e.images.targets import ImageError

LINES = {
    "buildah's and podman's steps, without the mounts": (
        "[3/9] STEP 2/3: RUN --mount=type=secret,id=pip-config,target=/run/pip.conf     install-packages -r /a.txt",
        "RUN install-packages -r /a.txt",
    ),
    "docker's steps": ("#12 [code 2/9] COPY requirements/build.txt /build/", "COPY requirements/build.txt /build/"),
    "the build of torch": ("torch build: '2.13.0+cpu'", "torch build: '2.13.0+cpu'"),
    "the build of torch, under docker": ("#15 11.7 torch build: '2.13.0'", "torch build: '2.13.0'"),
    "settings are quiet": ("[3/9] STEP 1/3: ENV PATH=/usr/bin", None),
    "a command's own output is quiet": ("Successfully installed RUN-1.0", None),
}


@pytest.mark.parametrize(("line", "want"), LINES.values(), ids=LINES.keys())
def test_progress_line(line, want):
    assert progress_line(line) == want


def test_a_failed_build_shows_the_end_of_its_output(tmp_path):
    said = []
    script = "print('STEP 1/1: RUN make'); print('no rule'); raise SystemExit(3)"
    with pytest.raises(ImageError, match=r"failed \(3\); whole output: .*build.log\n(.|\n)*no rule"):
        run_logged([sys.executable, "-uc", script], tmp_path / "build.log", said.append, dict(os.environ))
    assert said == ["RUN make"]


def test_a_failed_question_shows_standard_error():
    with pytest.raises(ImageError, match=r"failed \(2\): broken$"):
        capture([sys.executable, "-c", "import sys; print('broken', file=sys.stderr); sys.exit(2)"], dict(os.environ))


def test_a_program_that_is_missing_does_not_succeed():
    assert not succeeds(["a-program-that-nobody-has"], dict(os.environ))
    assert succeeds([sys.executable, "-c", ""], dict(os.environ))


def test_a_command_is_named_without_its_options():
    command = [*APART, "buildah", "--root=/cache", "build", "--target", "engine"]
    assert describe(command) == "buildah build"
    assert describe(["/usr/bin/docker", "push", "a:1"]) == "docker push"


SOURCES = [
    "http://mirror.example/debian-security\tbookworm-security\tmain",
    "http://mirror.example/debian\tbookworm\tcontrib",
    "http://mirror.example/debian\tbookworm\tmain",
    "http://other.example/debian\tbookworm\tmain",
]


def test_the_mirror_is_the_first_that_apt_uses_for_the_suite():
    assert find_mirror(SOURCES, "bookworm") == "http://mirror.example/debian"


def test_without_a_mirror_the_remedy_is_named():
    with pytest.raises(ImageError, match="BASE="):
        find_mirror(SOURCES, "trixie")
