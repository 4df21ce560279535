"""Log probabilities of prompt tokens: equal to a plain forward pass, whatever happens to the request on its way."""

from __future__ import annotations

import pytest
import torch

from pagefleet_engine import LLM, SamplingParams
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.request import FinishReason, Request
from pagefleet_engine.runtime import scoring
from pagefleet_engine.runtime.backend import Attention, Backend
from pagefleet_engine.runtime.graphs import RunAgain
from pagefleet_engine.testing import (
    ByteTokenizer,
    naive_logits,
    naive_sealed_logits,
    sealed_groups,
    tiny_core,
    tiny_decoder,
)

DECODER = tiny_decoder()
PAGED = Backend(attention=Attention.REFERENCE, is_paged=True)
NUM_TOP = 3
TOLERANCE = 2e-5


def text_of(seed, length):
    return [(seed * 97 + 7 * i * i + 3 * i) % 256 for i in range(length)]


PROMPT = text_of(1, 150)


def wants(num_top=NUM_TOP, **fields):
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, "prompt_logprobs": num_top} | fields
    )


def ask(core, name, prompt, sampling=None, **fields):
    core.add(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling or wants(), **fields))


def run(core):
    """Outputs of every request, step by step."""
    outputs = {}
    while core.has_work:
        for name, output in core.step():
            outputs.setdefault(name, []).append(output)
        core.scheduler.check_invariants()
    return outputs


def scores_of(outputs):
    """The one output with prompt log probabilities is the first, and there is no other."""
    assert [output.prompt_logprobs is not None for output in outputs] == [True] + [False] * (len(outputs) - 1)
    return list(outputs[0].prompt_logprobs.entries())


def expected(prompt, num_top=NUM_TOP, logits=None, tolerance=TOLERANCE):
    """(token, log probability, ranks, most likely tokens) of every prompt token but the first, from a whole forward.

    Ranks are several only where tokens are as likely as the tolerance can tell.
    """
    logprobs = (naive_logits(DECODER, prompt) if logits is None else logits).double().log_softmax(-1)
    want = []
    for row, order, token in zip(logprobs, logprobs.argsort(descending=True).tolist(), prompt[1:], strict=False):
        own = float(row[token])
        ranks = range(1 + int((row > own + 2 * tolerance).sum()), 1 + int((row >= own - 2 * tolerance).sum()))
        want.append((token, own, ranks, [(token_id, float(row[token_id])) for token_id in order[:num_top]]))
    return want


def assert_equal(entries, want, tolerance=TOLERANCE):
    assert [entry.token_id for entry in entries] == [token for token, _, _, _ in want]
    assert [entry.logprob for entry in entries] == pytest.approx([logprob for _, logprob, _, _ in want], abs=tolerance)
    for entry, (_, _, ranks, top) in zip(entries, want, strict=True):
        assert entry.rank in ranks
        assert [logprob for _, logprob in entry.top] == pytest.approx([logprob for _, logprob in top], abs=tolerance)
        if tolerance == TOLERANCE:
            assert [token for token, _ in entry.top] == [token for token, _ in top]


def test_the_tolerance_leaves_hardly_any_doubt():
    assert sum(len(ranks) for _, _, ranks, _ in expected(PROMPT)) <= len(PROMPT) + 5


@pytest.mark.parametrize("budget", [16, 48, 512])
@pytest.mark.parametrize("length", [1, 2, 17, 150])
def test_they_are_those_of_a_whole_forward_pass(budget, length):
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=budget)
    ask(core, "a", PROMPT[:length])
    [outputs] = run(core).values()
    assert_equal(scores_of(outputs), expected(PROMPT[:length]))
    assert sum(len(output.token_ids) for output in outputs) == 4


@pytest.mark.parametrize("budget", [2, 16, 48, 512])
def test_paged_steps_and_their_graphs_give_the_same(budget):
    """A budget of 2 computes prompts one token at a time, as decodes: such steps run as graphs."""
    core = tiny_core(
        decoder=DECODER, max_num_batched_tokens=budget, backend=PAGED, capture=RunAgain(), raw_dtype=torch.bfloat16
    )
    ask(core, "decoding", text_of(3, 5), wants(max_tokens=30))
    core.step()
    ask(core, "a", PROMPT)
    ask(core, "b", PROMPT[:65])
    outputs = run(core)
    groups = sealed_groups(Precision.BF16, len(PROMPT))
    # a key that is computed alone may round to another bf16 than one of a chunk
    want = expected(PROMPT, logits=naive_sealed_logits(DECODER, PROMPT, groups), tolerance=1e-3)
    assert_equal(scores_of(outputs["a"]), want, tolerance=1e-3)
    assert_equal(scores_of(outputs["b"]), want[:64], tolerance=1e-3)


def test_logits_come_in_slices(monkeypatch):
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=512)
    seen = []
    whole = DECODER.logits
    executor = core._executor._runner
    executor.decoder = type("Counting", (), {"logits": lambda _, x: seen.append(len(x)) or whole(x)})()
    ask(core, "a", PROMPT)
    run(core)
    assert seen[:4] == [1, scoring.SLICE_ROWS, scoring.SLICE_ROWS, 149 - 2 * scoring.SLICE_ROWS]


def test_no_token_may_be_wanted():
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=48)
    ask(core, "a", PROMPT, wants(max_tokens=0))
    ask(core, "b", PROMPT[:30], SamplingParams(max_tokens=0, logprobs=1))
    outputs = run(core)
    [last] = outputs["a"]
    assert (last.token_ids, last.logprobs, last.finish_reason) == ((), None, FinishReason.LENGTH)
    assert_equal(scores_of([last]), expected(PROMPT))
    [last] = outputs["b"]
    assert (last.token_ids, last.logprobs, last.prompt_logprobs) == ((), (), None)


def test_a_prompt_may_fill_the_context_and_the_pool_when_no_token_is_wanted():
    prompt = text_of(2, 160)
    core = tiny_core(decoder=DECODER, max_model_len=160, num_frames=10)
    ask(core, "a", prompt, wants(max_tokens=0))
    assert_equal(scores_of(run(core)["a"]), expected(prompt))
    with pytest.raises(RequestRefused, match="the whole pool has 9"):
        ask(tiny_core(decoder=DECODER, max_model_len=160, num_frames=9), "a", prompt[:145], wants(max_tokens=0))


def test_a_warm_cache_is_not_used_but_filled():
    core = tiny_core(decoder=DECODER, enable_prefix_caching=True)
    for name in ("cold", "warm"):
        ask(core, name, PROMPT)
        [outputs] = run(core).values()
        assert_equal(scores_of(outputs), expected(PROMPT))
        assert outputs[-1].num_cached_tokens == 0
    ask(core, "plain", PROMPT, SamplingParams(temperature=0.0, max_tokens=2))
    assert run(core)["plain"][-1].num_cached_tokens == 144
    assert core.stats().prefix_query_tokens_total == 150, "only the request that looked is counted"


def test_choices_share_frames_but_those_that_want_scores_compute_them():
    core = tiny_core(decoder=DECODER)
    ask(core, "parent", PROMPT, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    ask(core, "child", PROMPT, fork_of="parent")
    assert_equal(scores_of(run(core)["child"]), expected(PROMPT))


def test_a_parked_prompt_without_an_answer_has_forks():
    core = tiny_core(decoder=DECODER)
    ask(core, "parent", PROMPT, SamplingParams(max_tokens=0), keep_frames=True)
    assert run(core)["parent"][-1].finish_reason is FinishReason.LENGTH
    ask(core, "child", PROMPT, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), fork_of="parent")
    assert len(run(core)["child"]) == 2
    assert core.scheduler.stats().counters.forks == 1
    core.abort("parent")


def test_nan_in_a_prompt_row_ends_that_request_alone():
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=48)
    runner = core._executor._runner

    class Breaking:
        def logits(self, x):
            logits = DECODER.logits(x)
            if len(x) > 16:
                logits[5] = float("nan")
            return logits

    runner.decoder = Breaking()
    ask(core, "a", PROMPT)
    ask(core, "b", PROMPT[:10])
    outputs = run(core)
    [failed] = outputs["a"]
    assert (failed.finish_reason, failed.error) == (FinishReason.ERROR, "the model's logits peak at nan")
    assert failed.prompt_logprobs is None
    assert_equal(scores_of(outputs["b"]), expected(PROMPT[:10]))
    assert not core._prompt_logprobs


def test_an_aborted_request_leaves_nothing():
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=16)
    ask(core, "a", PROMPT)
    core.step()
    core.abort("a")
    assert not core.has_work
    assert not core._prompt_logprobs


def test_offline_outputs_carry_them():
    llm = LLM.over(tiny_core(decoder=DECODER), ByteTokenizer())
    one, two = llm.generate([PROMPT, PROMPT[:20]], wants(n=2, temperature=1.0), progress=False)
    for completion, prompt in ((one, PROMPT), (two, PROMPT[:20])):
        assert completion.prompt_logprobs[0] is None
        assert_equal(completion.prompt_logprobs[1:], expected(prompt))
        assert len(completion.choices) == 2
    [plain] = llm.generate(["a"], wants(num_top=None), progress=False)
    assert plain.prompt_logprobs is None
