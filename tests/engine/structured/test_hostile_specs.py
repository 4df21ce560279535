"""Specifications that would end the process inside the compiler; each is compiled in a process of its own."""

import subprocess
import sys

import pytest

COMPILE = """
import sys
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.compiling import build_vocabulary, compile_spec
from pagefleet_engine.structured.spec import Kind, Spec
from pagefleet_engine.testing import ByteTokenizer

try:
    compile_spec(build_vocabulary(ByteTokenizer()), Spec(kind=Kind(sys.argv[1]), text=sys.stdin.read()))
    print("compiled")
except RequestRefused as refused:
    print(refused)
"""
REFUSED = "numbers below -9.2e18 are not supported"
CHAIN = "\n".join(["start: a0", *(f"a{i:x}:a{i + 1:x}" for i in range(6_000)), 'a1770:"x"'])
REFERENCES = ",".join(f'"a{i}": {{"$ref": "#/$defs/a{i + 1}"}}' for i in range(1_500))
SPECS = {
    "the least 64-bit integer": ("json_schema", '{"const": -9223372036854775808}', REFUSED),
    "what rounds to it": ("json_schema", '{"enum": [[1, -9223372036854775297]]}', REFUSED),
    "bounds that are clamped to it": (
        "json_schema",
        '{"type": "integer", "minimum": -1e19, "maximum": -1e19}',
        REFUSED,
    ),
    "more than a float holds": ("json_schema", '{"anyOf": [{"const": -1e400}]}', REFUSED),
    "inside a grammar": ("grammar", 'start: %json {"const": -9223372036854775808}', REFUSED),
    "inside a grammar, with an exponent": ("grammar", 'start: %json {"const": -9.3e18}', REFUSED),
    "the next allowed one": ("json_schema", '{"const": -9200000000000000000}', "compiled"),
    "a large positive one": ("json_schema", '{"const": 9223372036854775807}', "compiled"),
    "an identifier in a literal": ("grammar", 'start: "-99999999999999999999"', "compiled"),
    "a chain of 6,000 rules": ("grammar", CHAIN, "compiled"),
    "a chain of 1,500 references": (
        "json_schema",
        '{"$defs": {%s, "a1500": {"type": "null"}}, "$ref": "#/$defs/a0"}' % REFERENCES,  # noqa: UP031  braces
        "compiled",
    ),
}


@pytest.mark.parametrize(("kind", "text", "says"), SPECS.values(), ids=SPECS.keys())
def test_the_process_lives_and_says(kind, text, says):
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, kind], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, says), done.stderr
