"""The offline API over a tiny model."""

import io
import subprocess
import sys
from dataclasses import replace

import pytest

from pagefleet_engine import LLM, SamplingParams
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.llm import Progress
from pagefleet_engine.request import FinishReason
from pagefleet_engine.testing import ByteTokenizer, naive_greedy, smollm2_file, tiny_core, tiny_decoder

DECODER = tiny_decoder()
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def llm():
    return LLM.over(tiny_core(decoder=DECODER), ByteTokenizer())


def test_texts_and_ids_are_answered_in_order(llm):
    found = llm.generate(["ab", "xyz", "q"], GREEDY)
    prompts = [[256, *text] for text in (b"ab", b"xyz", b"q")]
    assert [list(one.prompt_token_ids) for one in found] == prompts
    assert [list(one.choices[0].token_ids) for one in found] == [naive_greedy(DECODER, p, 8) for p in prompts]
    assert llm.generate([3, 1, 4], GREEDY)[0].choices[0].token_ids == tuple(naive_greedy(DECODER, [3, 1, 4], 8))


def test_text_is_what_the_tokens_say(llm):
    choice = llm.generate("hello", GREEDY)[0].choices[0]
    assert choice.text == ByteTokenizer().decode(choice.token_ids)
    assert choice.finish_reason is FinishReason.LENGTH


def test_n_choices_differ_by_seed_and_repeat(llm):
    params = SamplingParams(temperature=1.0, seed=4, n=3, max_tokens=6, ignore_eos=True)
    first, again = llm.generate("abc", params)[0], llm.generate("abc", params)[0]
    assert first == again
    assert len({choice.token_ids for choice in first.choices}) == 3


def test_seeds_go_round_at_the_end_of_their_range(llm):
    params = SamplingParams(temperature=1.0, seed=2**63 - 1, n=2, max_tokens=6, ignore_eos=True)
    [both] = llm.generate("abc", params)
    lowest = llm.generate("abc", replace(params, n=1, seed=-(2**63)))[0]
    assert both.choices[1] == lowest.choices[0] != both.choices[0]


def test_best_of_returns_the_most_likely_of_the_same_choices(llm):
    params = SamplingParams(temperature=1.0, seed=4, n=4, max_tokens=6, ignore_eos=True, logprobs=0)
    [all_four] = llm.generate("hello", params)
    ranked = sorted(all_four.choices, key=lambda choice: -sum(entry.logprob for entry in choice.logprobs))
    [best] = llm.generate("hello", replace(params, n=2, best_of=4, logprobs=None))
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.logprobs for choice in best.choices] == [None, None]


def test_a_stop_string_ends_an_answer_before_it(llm):
    full = llm.generate("hello", GREEDY)[0].text
    stop = full[3:5]
    cut = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=(stop,)))[0]
    assert cut.text == full[: full.index(stop)]
    assert cut.choices[0].finish_reason is FinishReason.STOP


def test_a_dialogue_goes_through_the_template(llm):
    found = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert bytes(found[0].prompt_token_ids) == b"user: hi\nassistant: "
    assert len(llm.chat([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]], GREEDY)) == 2


def test_a_refused_prompt_leaves_nothing_behind(llm):
    with pytest.raises(RequestRefused):
        llm.generate(["fine", [3] * 500], GREEDY)
    assert not llm._core.has_work
    assert llm.generate("fine", GREEDY)


def test_more_choices_than_the_queue_has_places_for_come_in_turn(llm):
    params = replace(GREEDY, n=3, temperature=1.0, seed=4)
    narrow = LLM.over(tiny_core(decoder=DECODER, max_num_queued=2, max_num_seqs=2), ByteTokenizer())
    assert narrow.generate(["ab", "xyz", "q"], params) == llm.generate(["ab", "xyz", "q"], params)
    assert not narrow._core.has_work


def test_a_prompt_that_does_not_fit_is_refused_before_the_first_step_however_late_its_turn():
    narrow = LLM.over(tiny_core(decoder=DECODER, max_num_queued=1), ByteTokenizer())
    with pytest.raises(RequestRefused, match="500 in the prompt"):
        narrow.generate(["a", "b", "c", [3] * 500], GREEDY)
    assert narrow._core.stats().step_counter == 0


def test_progress_is_written_to_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress = Progress(2, stream, enabled=True)
        progress.advance(5)
        progress.advance(7)
        progress.close()
    assert terminal.getvalue() == "\r1 of 2 requests, 5 tokens\r2 of 2 requests, 12 tokens\n"
    assert pipe.getvalue() == ""


def test_importing_the_package_loads_no_torch():
    code = "import sys, pagefleet_engine; assert 'torch' not in sys.modules; pagefleet_engine.SamplingParams"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
def test_the_capital_of_france():
    llm = LLM(str(smollm2_file()), max_model_len=256, kv_cache_memory_bytes=50_000_000)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20))[0]
    assert answer.text == "The capital of France is Paris."
    assert answer.choices[0].finish_reason is FinishReason.STOP
