"""The repository's shape: source roots stay folders, packages stay importable without their heavy parts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ["operator", "engine", "cli", "kernels"]


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_source_roots_are_not_packages(folder):
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_packages_say_that_they_are_typed(folder):
    assert (ROOT / folder / f"pagefleet_{folder}" / "py.typed").exists()


def test_the_standard_operator_module_wins_from_the_repository_root():
    # -S: a start-up hook in site-packages may import the standard module first and so hide the fault.
    code = "import operator; assert operator.itemgetter(0)('x') == 'x'"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", ["pagefleet_engine.contract.arguments", "pagefleet_kernels", "pagefleet_operator"])
def test_light_modules_load_no_torch(module):
    code = f"import sys, {module}; assert not {{'torch', 'triton', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_import_contracts_hold():
    found = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_locked_requirements_name_no_download_address():
    for lock in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in lock.read_text(), lock.name


def test_every_locked_requirement_has_a_hash():
    for lock in (ROOT / "requirements").glob("*.txt"):
        if lock.name == "torch.txt":
            continue
        lines = lock.read_text().splitlines()
        pinned = [number for number, line in enumerate(lines) if "==" in line]
        assert pinned
        assert all("--hash=sha256:" in lines[number + 1] for number in pinned), lock.name


def sources():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


def test_no_file_is_longer_than_400_lines():
    assert [path.name for path in sources() if path.read_text().count("\n") > 400] == []


def test_no_function_is_longer_than_60_lines_and_no_kernel_than_100():
    long = []
    for path in sources():
        limit = 100 if path.name in ("kernel.py", "device_code.py") else 60
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > limit:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []
