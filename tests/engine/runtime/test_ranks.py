"""Two ranks over gloo: the same tokens as one, KV heads divided or repeated, and what a lost rank does."""

from functools import partial

import pytest
import torch

from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.parallel import Shard
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.ranks import RankLost, RanksExecutor
from pagefleet_engine.testing import TINY, naive_greedy, naive_logits, tiny_core, tiny_decoder, tiny_runner

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def core():
    executor = RanksExecutor(partial(tiny_runner, dtype=torch.float32), 2)
    core = tiny_core(executor_of=lambda _: executor)
    yield core
    core.close()


def test_two_ranks_give_the_tokens_of_one(core):
    prompts = {name: [(i * 7 + j * j) % 256 for j in range(20 + 9 * i)] for i, name in enumerate("abc")}
    for name, prompt in prompts.items():
        core.add(Request(request_id=name, prompt_token_ids=prompt, sampling=GREEDY))
    tokens = {}
    while core.has_work:
        for name, output in core.step():
            tokens.setdefault(name, []).extend(output.token_ids)
    assert tokens == {name: naive_greedy(tiny_decoder(), prompt, 8) for name, prompt in prompts.items()}


def test_two_ranks_score_prompts_as_one_does(core):
    prompt = [(7 * i + i * i) % 256 for i in range(150)]
    sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=2)
    core.add(Request(request_id="a", prompt_token_ids=prompt, sampling=sampling))
    outputs = []
    while core.has_work:
        outputs += [output for _, output in core.step()]
    [entries] = [list(output.prompt_logprobs.entries()) for output in outputs]
    logprobs = naive_logits(tiny_decoder(), prompt).log_softmax(-1)[:-1]
    own = [float(row[token]) for row, token in zip(logprobs, prompt[1:], strict=True)]
    assert [entry.logprob for entry in entries] == pytest.approx(own, abs=2e-5)
    assert [[token for token, _ in entry.top] for entry in entries] == logprobs.topk(2).indices.tolist()


def test_a_lost_rank_ends_the_engine_with_its_name(core):
    core.add(Request(request_id="a", prompt_token_ids=[1, 2, 3], sampling=GREEDY))
    core.step()
    child = core._executor._children[0]
    child.kill()
    child.join()
    with pytest.raises(RankLost, match="rank-1 has ended with exit code -9"):
        core.step()


def test_a_rank_that_does_not_come_up_is_a_startup_error():
    with pytest.raises(StartupError, match="--tensor-parallel-size 2: rank-1 has ended with exit code 1"):
        RanksExecutor(fails_on_rank_one, 2)


def fails_on_rank_one(shard, all_reduce):
    if shard.rank == 1:
        raise SystemExit(1)
    return tiny_runner(shard, all_reduce)


def test_what_a_rank_has_to_say_is_the_startup_error():
    with pytest.raises(StartupError, match=r"^its share of the weights is damaged$"):
        RanksExecutor(refuses_on_rank_one, 2)


def refuses_on_rank_one(shard, all_reduce):
    if shard.rank == 1:
        raise StartupError("its share of the weights is damaged")
    return tiny_runner(shard, all_reduce)


DIVIDED = {
    "two heads on two ranks": (2, 2, [range(0, 1), range(1, 2)]),
    "six heads on two ranks": (6, 2, [range(0, 3), range(3, 6)]),
    "one head repeated on four": (1, 4, [range(0, 1)] * 4),
    "two heads repeated on four": (2, 4, [range(0, 1), range(0, 1), range(1, 2), range(1, 2)]),
}


@pytest.mark.parametrize(("heads", "size", "want"), DIVIDED.values(), ids=DIVIDED.keys())
def test_which_kv_heads_a_rank_holds(heads, size, want):
    assert [Shard(rank=rank, size=size).kv_heads(heads) for rank in range(size)] == want


@pytest.mark.parametrize(("heads", "size"), [(3, 2), (2, 3)])
def test_kv_heads_that_do_not_divide_are_refused(heads, size):
    with pytest.raises(ValueError, match="cannot be"):
        Shard(rank=0, size=size).kv_heads(heads)


def test_a_rank_has_its_share_of_heads_and_columns():
    part = Shard(rank=1, size=2).config(TINY)
    assert (part.num_heads, part.num_kv_heads, part.intermediate_size, part.hidden_size) == (3, 1, 32, 48)
