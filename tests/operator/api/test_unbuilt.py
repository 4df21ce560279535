"""What has no behaviour is refused with its path and the remedy, and nothing else is."""

from __future__ import annotations

import pytest

from e2e.invalid_specs import VALID
from pagefleet_operator.api.fields import leaves
from pagefleet_operator.api.unbuilt import UNBUILT, unbuilt_fields
from pagefleet_operator.api.validation import validate

FETCHING = (
    "spec.model.uri: fetching models from an oci:// registry is not built yet: use a file://, pvc:// or hf:// URI"
)

# sentence → (model URI, problems)
CASES = {
    "a hub": ("hf://owner/name", []),
    "a registry": ("oci://registry.example/models/tiny", [FETCHING]),
    "a file": ("file:///models/tiny", []),
    "a volume": ("pvc://models/tiny", []),
}


@pytest.mark.parametrize(("uri", "expected"), CASES.values(), ids=CASES.keys())
def test_what_is_not_built_is_refused(uri, expected):
    spec = validate(VALID["spec"] | {"model": {"uri": uri, "name": "tiny"}})
    assert [str(problem) for problem in unbuilt_fields(spec)] == expected


def test_every_row_names_a_field():
    assert {f"spec.{row.path}" for row in UNBUILT} <= {leaf.path for leaf in leaves("spec")}
