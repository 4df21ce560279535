"""Where services come from: files, the standard input, and a kubectl that a test writes."""

import io
import json
from pathlib import Path

import pytest

from pagefleet_cli.errors import CommandError
from pagefleet_cli.main import main
from pagefleet_cli.services import Source, find_service, find_services

GOLDEN = Path(__file__).parent / "golden"


def service(name, namespace="default"):
    return {"kind": "LLMService", "metadata": {"name": name, "namespace": namespace}, "status": {"replicas": 1}}


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Puts a kubectl on the PATH that writes its arguments down and then does what the test says."""

    def install(script):
        program = tmp_path / "kubectl"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    install.arguments = lambda: (tmp_path / "arguments").read_text().strip()
    return install


def test_one_service_is_asked_for_by_name(kubectl):
    kubectl(f"echo '{json.dumps(service('chat'))}'")
    source = Source(namespace="team-a", context="prod")
    assert find_service(source, "chat").name == "chat"
    want = "get llmservices.pagefleet.io chat --output=json --namespace=team-a --context=prod"
    assert kubectl.arguments() == want


def test_all_namespaces_are_asked_for(kubectl):
    kubectl(f"echo '{json.dumps({'items': [service('a', 'x'), service('b', 'y')]})}'")
    found = find_services(Source(all_namespaces=True))
    assert [(one.namespace, one.name) for one in found] == [("x", "a"), ("y", "b")]
    assert kubectl.arguments() == "get llmservices.pagefleet.io --output=json --all-namespaces"


def test_a_cluster_without_services_is_no_error(kubectl):
    kubectl("""echo '{"items": []}'""")
    assert find_services(Source()) == []


def test_what_kubectl_complains_about_is_one_line(kubectl, capsys):
    kubectl("echo noise >&2; echo 'Error from server (NotFound): llmservices \"x\" not found' >&2; exit 1")
    assert main(["explain", "x"]) == 1
    assert capsys.readouterr().err == 'pagefleet: Error from server (NotFound): llmservices "x" not found\n'


def test_a_missing_kubectl_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="kubectl is not on the PATH: install it, or give the object with --file"):
        find_services(Source())


def test_the_standard_input_is_a_file_named_dash(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(service("chat"))))
    assert find_service(Source(file=Path("-")), None).name == "chat"


def test_documents_lists_and_other_kinds_are_told_apart(tmp_path):
    path = tmp_path / "all.yaml"
    lists = {"kind": "List", "items": [service("b"), {"kind": "Pod", "metadata": {"name": "p"}}]}
    path.write_text(f"---\n{json.dumps(service('a'))}\n---\nkind: ConfigMap\n---\n{json.dumps(lists)}\n")
    assert [one.name for one in find_services(Source(file=path))] == ["a", "b"]


BAD_FILES = {
    "neither JSON nor YAML": ("a: [", "neither JSON nor YAML"),
    "no service in it": ("kind: Pod", "no LLMService in it"),
    "an empty file": ("", "no LLMService in it"),
    "another name": (json.dumps(service("other")), "no LLMService named chat in it"),
}


@pytest.mark.parametrize(("content", "says"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_one_line_that_names_it(tmp_path, capsys, content, says):
    path = tmp_path / "input"
    path.write_text(content)
    assert main(["explain", "chat", "-f", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert says in error


def test_a_missing_file_is_one_line(capsys):
    assert main(["status", "-f", "/nowhere/x.yaml"]) == 1
    assert capsys.readouterr().err == "pagefleet: --file /nowhere/x.yaml: No such file or directory\n"


def test_without_a_name_there_has_to_be_one_service(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"items": [service("a"), service("b")]}))
    with pytest.raises(CommandError, match=r"give the NAME of one LLMService: there are 2 \(a, b\)"):
        find_service(Source(file=path), None)


def test_a_status_of_another_version_is_read_as_far_as_it_can_be(tmp_path):
    path = tmp_path / "odd.json"
    odd = service("a") | {"status": {"replicas": "many", "replicasSummary": "1/1", "unknown": 3}}
    path.write_text(json.dumps(odd))
    found = find_service(Source(file=path), None).status
    assert (found.replicas, found.replicas_summary) == (None, "1/1")
