"""What goes into an image: its tag changes exactly when an input does."""

from pathlib import Path

import pytest

from e2e.images.inputs import (
    COMMON,
    REQUIREMENTS,
    SOURCE_ROOTS,
    TorchBuild,
    choose_torch,
    digest_inputs,
    digest_parts,
    pinned_torch,
    project_version,
    wheels_offered,
)
from e2e.images.targets import ImageError, Target

ROOT = Path(__file__).parent.parent.parent
OTHERS = {"base": "b" * 64, "torch": "2.13.0"}


@pytest.fixture
def tree(tmp_path):
    names = {*COMMON, *(name for names in REQUIREMENTS.values() for name in names), "README.md", "docs/a.md"}
    for name in (*names, *(f"{root}/package/module.py" for root in SOURCE_ROOTS)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


CHANGES = {
    "the Containerfile": ("Containerfile", {"operator", "engine", "engine-demo"}),
    "what the build context leaves out": (".dockerignore", {"operator", "engine", "engine-demo"}),
    "the operator's packages": ("requirements/operator.txt", {"operator"}),
    "the engine's packages": ("requirements/engine.txt", {"engine", "engine-demo"}),
    "the version of torch": ("requirements/torch.txt", {"engine", "engine-demo"}),
    "the demo's model": ("requirements/demo.txt", {"engine-demo"}),
    "the build's packages": ("requirements/build.txt", {"operator", "engine", "engine-demo"}),
    "our code, which is one wheel": ("kernels/package/module.py", {"operator", "engine", "engine-demo"}),
    "a new file of our code": ("operator/package/new.py", {"operator", "engine", "engine-demo"}),
    "README.md, which no image holds": ("README.md", set()),
    "the documentation": ("docs/a.md", set()),
    "bytecode beside our code": ("engine/package/__pycache__/module.cpython-311.pyc", set()),
}


@pytest.mark.parametrize(("name", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_reaches_the_images_that_it_goes_into(tree, name, want):
    before = {target: digest_inputs(tree, target, OTHERS) for target in Target}
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("changed")
    changed = {target for target in Target if digest_inputs(tree, target, OTHERS) != before[target]}
    assert changed == want


def test_the_base_and_the_build_of_torch_count(tree):
    digests = {
        digest_inputs(tree, Target.ENGINE, others)
        for others in (OTHERS, {**OTHERS, "base": "c" * 64}, {**OTHERS, "torch": "2.13.0+cpu"}, dict(OTHERS))
    }
    assert len(digests) == 3


def test_dates_do_not_count(tree):
    before = digest_inputs(tree, Target.ENGINE, OTHERS)
    (tree / "Containerfile").touch()
    assert digest_inputs(tree, Target.ENGINE, OTHERS) == before


def test_moving_a_file_counts(tree):
    before = digest_inputs(tree, Target.OPERATOR, OTHERS)
    (tree / "operator/package/module.py").rename(tree / "operator/package/other.py")
    assert digest_inputs(tree, Target.OPERATOR, OTHERS) != before


def test_a_missing_input_is_named(tree):
    (tree / "Containerfile").unlink()
    with pytest.raises(ImageError, match=r"Containerfile is missing"):
        digest_inputs(tree, Target.ENGINE, OTHERS)


def test_the_digest_does_not_depend_on_the_order():
    assert digest_parts({"a": "1", "b": "2"}) == digest_parts({"b": "2", "a": "1"})


WHEELS = {
    "no wheel at all: the registry's build": ([], TorchBuild(version="2.13.0", wheel=None)),
    "a CPU build": (
        ["torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"],
        TorchBuild(version="2.13.0+cpu", wheel=Path("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")),
    ),
    "another version, another Python, another machine and another package do not fit": (
        [
            "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
            "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl",
            "torch-2.13.0.1-cp311-cp311-manylinux_2_28_x86_64.whl",
            "torchvision-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        ],
        TorchBuild(version="2.13.0", wheel=None),
    ),
    "of two builds the last by name": (
        ["torch-2.13.0+cu130-cp311-cp311-linux_x86_64.whl", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"],
        TorchBuild(version="2.13.0+cu130", wheel=Path("torch-2.13.0+cu130-cp311-cp311-linux_x86_64.whl")),
    ),
}


@pytest.mark.parametrize(("names", "want"), WHEELS.values(), ids=WHEELS.keys())
def test_choose_torch(names, want):
    assert choose_torch("2.13.0", "x86_64", [Path(name) for name in names]) == want


def test_wheels_are_looked_for_in_local_folders_only(tmp_path):
    wheel = tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    assert wheels_offered(f"https://wheels.example/simple {tmp_path} {tmp_path}/none") == [wheel]
    assert wheels_offered(f"file://{tmp_path}") == [wheel]


def test_the_containerfile_names_the_pinned_torch():
    pinned = pinned_torch((ROOT / "requirements/torch.txt").read_text())
    arguments = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line.startswith("ARG TORCH")]
    assert set(arguments) == {f"ARG TORCH={pinned}"}


def test_a_requirements_file_without_torch_is_refused():
    with pytest.raises(ImageError, match="pins no torch"):
        pinned_torch("triton==3.7.1\n")


def test_the_build_context_holds_every_input():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {*SOURCE_ROOTS, "requirements", "pyproject.toml"} == allowed


def test_project_version():
    assert project_version('[project]\nversion = "1.2.3"\n') == "1.2.3"
