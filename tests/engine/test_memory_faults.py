"""Every known fault of an engine's KV memory, and the test of ours that would show it.

The numbers name the reports. What belongs to features that this engine lacks (hand-over between pods, sliding windows,
latent attention) is not in the table.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.scheduling.testing import Harness
from pagefleet_engine.testing import tiny_core, tiny_decoder
from pagefleet_engine.warming import warm_up

HERE = Path(__file__).parent
KNOWN = "scheduling/test_known_bugs.py"

# fault → (reports, tests)
FAULTS = {
    "FP8 KV gives wrong output": (
        ["vLLM#13133", "vLLM#41343", "llama.cpp#23044", "ik_llama.cpp#92"],
        ["core/test_sealing.py::test_a_sealed_answer_does_not_depend_on_the_chunks"],
    ),
    "scales are lost when KV moves": (
        ["vLLM#25800", "vLLM#42179", "SGLang#18882"],
        ["core/test_sealing.py::test_preempted_requests_resume_with_what_they_saw"],
    ),
    "garbage after several turns with prefix hits": (
        ["vLLM#38652"],
        [
            f"{KNOWN}::test_many_turns_of_a_conversation_hit_the_cache_and_answer_as_if_alone",
            "core/test_exactness.py::test_every_request_equals_its_solo_run_under_pressure",
        ],
    ),
    "what runs before the first request spoils scales": (
        ["vLLM#37554", "vLLM#37565"],
        ["test_memory_faults.py::test_warming_up_changes_no_answer"],
    ),
    "frames are mixed up under concurrency": (
        ["vLLM#39146"],
        [
            "core/test_exactness.py::test_every_request_equals_its_solo_run_under_pressure",
            "core/test_exactness.py::test_without_a_prefix_cache_too",
            "scheduling/test_simulation.py::test_random_histories",
        ],
    ),
    "two requests preempt each other for ever": (
        ["vLLM#25538"],
        [f"{KNOWN}::test_requests_do_not_preempt_each_other_for_ever"],
    ),
    "an answer is incomplete after a recompute": (
        ["vLLM#16832"],
        [
            f"{KNOWN}::test_an_answer_is_complete_after_a_recompute",
            "core/test_exactness.py::test_a_change_of_precision_is_replayed",
        ],
    ),
    "nothing runs any more once host memory was used": (
        ["vLLM#546"],
        [f"{KNOWN}::test_the_engine_goes_on_after_host_memory_was_used"],
    ),
    "too little host memory ends the engine": (
        ["vLLM#588"],
        [f"{KNOWN}::test_too_little_host_memory_means_recompute_and_no_error"],
    ),
    "choices with a prompt in chunks fill host memory": (
        ["vLLM#5578"],
        [f"{KNOWN}::test_choices_with_a_prompt_in_chunks_do_not_fill_host_memory"],
    ),
    "a request is admitted while its frames are leaving": (
        ["vLLM#46014"],
        [f"{KNOWN}::test_a_request_is_not_admitted_again_while_its_frames_are_leaving"],
    ),
    "a host slot is reused, or read, while it is in transfer": (
        [
            *("vLLM#31341", "vLLM#29870", "SGLang#38031", "SGLang#27504", "SGLang#31427", "SGLang#22811"),
            *("SGLang#30321", "SGLang#26728", "SGLang#27444"),
        ],
        [
            f"{KNOWN}::test_a_host_slot_is_not_written_while_it_is_read",
            "memory/test_host_pool.py::test_a_slot_that_is_being_read_is_free_after_the_step",
            "memory/test_frame_pool.py::test_an_arriving_frame_is_in_transfer_until_the_step_has_ended",
            "core/test_core.py::test_swapped_frames_come_back_with_the_same_content",
        ],
    ),
    "an abort while frames arrive leaks them": (
        ["vLLM#46283", "vLLM#46289", "vLLM#44100"],
        [
            f"{KNOWN}::test_an_abort_while_prefix_frames_arrive_leaks_nothing",
            f"{KNOWN}::test_an_abort_of_a_swapped_or_resuming_request_leaks_nothing",
        ],
    ),
    "a client that leaves does not free its prompt": (
        ["vLLM#50425"],
        [
            f"{KNOWN}::test_a_client_that_leaves_in_the_middle_of_its_prompt_frees_its_frames",
            "server/test_disconnects.py::test_nothing_stays_behind",
        ],
    ),
    "an abort before the first step is an error": (
        ["vLLM#18485"],
        [f"{KNOWN}::test_an_abort_before_the_first_step_is_allowed"],
    ),
    "an abort between lookup and admission leaks": (
        ["SGLang#12693"],
        [f"{KNOWN}::test_an_abort_between_lookup_and_admission_leaks_nothing"],
    ),
    "cached frames are counted twice": (
        ["SGLang#35270"],
        [f"{KNOWN}::test_cached_frames_that_nobody_holds_are_counted_once"],
    ),
    "KV is kept by who has ended or waits": (
        ["SGLang#6778", "SGLang#33783"],
        [f"{KNOWN}::test_the_cap_at_its_lowest_keeps_no_frames_of_requests_that_have_ended"],
    ),
    "a result after the abort ends the engine": (
        ["LMCache#4185"],
        [f"{KNOWN}::test_a_result_that_comes_after_the_abort_is_dropped"],
    ),
    "a shared or copied frame is freed twice": (
        ["vLLM#1584", "vLLM#1556", "vLLM#3347"],
        [f"{KNOWN}::test_shared_and_copied_frames_are_freed_once_in_whatever_order_forks_end"],
    ),
    "the last frame is freed twice": (
        ["sglang-jax#994"],
        [f"{KNOWN}::test_ending_twice_frees_once", "memory/test_frame_pool.py::test_the_pool_refuses_when"],
    ),
    "host memory gives back another conversation": (
        ["llama.cpp#27148"],
        [
            f"{KNOWN}::test_host_memory_never_gives_back_another_conversation",
            "memory/test_prefix_cache.py::test_cve_2025_25183_a_hit_needs_more_than_the_key",
        ],
    ),
    "a prefix is used again at another position": (
        ["llama.cpp#12161"],
        [f"{KNOWN}::test_the_same_tokens_at_another_position_are_no_hit"],
    ),
    "a client that leaves spoils what others share, or keeps it": (
        ["llama.cpp#29163", "llama.cpp#25566"],
        [f"{KNOWN}::test_a_client_that_leaves_does_not_spoil_what_others_share"],
    ),
    "a share of nothing": (
        ["llama.cpp#28139"],
        ["test_memory_faults.py::test_shares_of_nothing_are_zero"],
    ),
    "choices write over each other, or are all the same": (
        ["vLLM#16863", "vLLM#14280", "vLLM#12584", "vLLM#11898"],
        [f"{KNOWN}::test_choices_do_not_write_over_each_other_and_differ_by_their_seed"],
    ),
}


def names_in(path):
    tree = ast.parse((HERE / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")}


@pytest.mark.parametrize(("reports", "tests"), FAULTS.values(), ids=FAULTS.keys())
def test_the_fault_has_a_test(reports, tests):
    assert reports
    for path, name in (test.split("::") for test in tests):
        assert name in names_in(path), f"{path} has no {name}"


def test_no_report_is_there_twice():
    named = [report for reports, _ in FAULTS.values() for report in reports]
    assert len(named) == len(set(named))


def test_shares_of_nothing_are_zero():
    stats = Harness(num_host_frames=0).scheduler.stats()
    assert (stats.usage, stats.host_usage) == (0.0, 0.0)
    assert (stats.memory.prefix_query_tokens, stats.memory.prefix_hit_tokens) == (0, 0)


@pytest.mark.parametrize("precision", [Precision.FP8_E4M3, Precision.INT8, Precision.INT4])
def test_warming_up_changes_no_answer(precision):
    decoder = tiny_decoder(dtype=torch.bfloat16)
    answers = []
    for warm in (False, True):
        core = tiny_core(decoder=decoder, dtype=torch.bfloat16, batch_invariant=True, enable_prefix_caching=True)
        if warm:
            warm_up(core)
        sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0)
        prompt = [0, *(i * i % 251 for i in range(70))]  # the warm-up's own token first
        core.add(Request(request_id="a", prompt_token_ids=prompt, sampling=sampling, precision=precision))
        answers.append([])
        while core.has_work:
            answers[-1] += [(e.token_id, e.logprob) for _, output in core.step() for e in output.logprobs or ()]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 40
