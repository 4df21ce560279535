"""Every example is accepted, and asks for nothing that is not built."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pagefleet_operator.api import v1alpha1
from pagefleet_operator.api.unbuilt import unbuilt_fields
from pagefleet_operator.api.validation import validate
from pagefleet_operator.manifests.pod import render_pod

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path):
    for document in yaml.safe_load_all(path.read_text()):
        assert (document["apiVersion"], document["kind"]) == (v1alpha1.API_VERSION, v1alpha1.KIND)
        spec = validate(document["spec"])
        assert isinstance(spec, v1alpha1.LLMServiceSpec), spec
        assert unbuilt_fields(spec) == []
        assert render_pod(spec, document["metadata"]["name"])["containers"]


def test_there_are_examples():
    assert EXAMPLES
