"""What the operator renders, the engine parses: every engine field of the resource, in random values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.arguments import parse
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.arguments import EXTRA_FIELDS, container_args, engine_arguments

engines = st.fixed_dictionaries(
    {
        "image": st.just("registry.example/engine:1"),
        "maxNumSeqs": st.integers(1, 64).flatmap(
            lambda cap: st.fixed_dictionaries({"initial": st.just(cap), "max": st.integers(cap, 4096)})
        ),
        "kvCache": st.fixed_dictionaries(
            {
                "blockSize": st.sampled_from([8, 16, 32, 64]),
                "memoryUtilization": st.sampled_from(["0.05", "0.5", "0.99"]),
            },
            optional={
                "size": st.sampled_from(["1Mi", "64Mi", "1.5Gi", 1048576]),
                "precision": st.sampled_from(["bf16", "fp8_e4m3", "int4"]),
                "swapSpace": st.sampled_from(["0", "512Mi", "4Gi"]),
            },
        ),
        "tensorParallelSize": st.integers(1, 64),
    },
    optional={"maxModelLen": st.integers(16, 1_000_000)},
)
specs = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"uri": st.sampled_from(["file:///models/a", "pvc://claim", "pvc://claim/b/c.gguf"]), "name": st.just("m")}
        ),
        "engine": engines,
        "drain": st.fixed_dictionaries({"timeout": st.sampled_from(["0s", "1500ms", "5m", "1h30m", "24h"])}),
    },
    optional={"routes": st.just([{"name": "tools", "model": "m-tools"}])},
)


@given(specs)
def test_the_engine_reads_what_the_operator_means(raw):
    spec = LLMServiceSpec.model_validate(raw)
    assert parse(container_args(spec)) == engine_arguments(spec)


def test_extra_arguments_are_real_flags_and_arrive():
    words = [
        "--max-num-batched-tokens",
        "64",
        "--max-num-queued-reqs=9",
        "--max-num-queued-tokens=90",
        "--enable-prefix-caching",
    ]
    words += ["--batch-invariant", "--dtype", "float32", "--seed", "7", "--tool-call-parser=mistral"]
    spec = LLMServiceSpec.model_validate(
        {
            "model": {"uri": "file:///m", "name": "m"},
            "engine": {"image": "registry.example/engine:1", "extraArgs": words},
        }
    )
    arguments = parse(container_args(spec))
    found = {name: getattr(arguments, name) for name in EXTRA_FIELDS}
    assert found == {
        "max_num_batched_tokens": 64,
        "max_num_queued_reqs": 9,
        "max_num_queued_tokens": 90,
        "enable_prefix_caching": True,
        "batch_invariant": True,
        "dtype": "float32",
        "tool_call_parser": "mistral",
        "seed": 7,
    }


# sentence → (words, tokens of prompts that may wait)
QUEUED_TOKENS = {
    "by default": ([], 1024 * 512),
    "by default, with another queue": (["--max-num-queued-reqs", "10"], 10 * 512),
    "by default, with another budget": (["--max-num-batched-tokens", "8192"], 1024 * 8192),
    "as it is given": (["--max-num-queued-tokens", "5000"], 5000),
    "0 is the default": (["--max-num-queued-tokens", "0", "--max-num-queued-reqs", "10"], 10 * 512),
}


@pytest.mark.parametrize(("words", "want"), QUEUED_TOKENS.values(), ids=QUEUED_TOKENS.keys())
def test_tokens_that_may_wait(words, want):
    assert parse(["--model", "m", *words]).queued_tokens == want


def test_a_model_on_a_claim_is_found_below_its_mount():
    spec = LLMServiceSpec.model_validate(
        {"model": {"uri": "pvc://claim/b/c.gguf", "name": "m"}, "engine": {"image": "registry.example/engine:1"}}
    )
    assert engine_arguments(spec).model == "/model/b/c.gguf"
