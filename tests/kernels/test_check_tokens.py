"""The rule by which a GPU's tokens are compared with the CPU's: ties may differ, nothing else, and all is compared."""

import math

import pytest
import torch

from check_engine import SMALL, Setup, make_core, random_decoder, setup_of
from check_tokens import ROUNDS, Chosen, Comparison, Question, Size, compare, tokens_case
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.backend import CPU
from pagefleet_engine.runtime.graphs import RunAgain


def chosen(token, logprob=-0.5, **top):
    return Chosen(token, logprob, {token: logprob, **{int(name[1:]): value for name, value in top.items()}})


WANT = [chosen(1), chosen(2, t7=-0.6), chosen(3, t8=-2.0), chosen(4)]

COMPARED = {
    "the same tokens are all compared": (WANT, 4, 0),
    "at a tie the comparison ends with it": ([chosen(1), chosen(7, -0.6), chosen(9), chosen(9)], 2, 1),
    "log probabilities may differ a little": ([chosen(1, -0.6), *WANT[1:]], 4, 0),
}


@pytest.mark.parametrize(("got", "count", "ties"), COMPARED.values(), ids=COMPARED.keys())
def test_answers_that_agree(got, count, ties):
    result = Comparison()
    assert result.common("0", WANT, got) == result.compared == count
    assert result.ties == ties


DIFFERENT = {
    "a token that is no tie": ([*WANT[:2], chosen(8, -2.0), chosen(4)], "token 8 for 3, 1.500 less likely on the CPU"),
    "a token that is not among the likely ones": ([chosen(9), *WANT[1:]], "token 9 for 1, inf less likely"),
    "another log probability": ([chosen(1, -0.8), *WANT[1:]], "log probabilities differ by 0.3"),
    "no number": ([chosen(1, math.nan), *WANT[1:]], "log probabilities differ by nan"),
    "another log probability of a tie": ([chosen(1), chosen(7, -0.9), *WANT[2:]], "differ by 0.3"),
}


@pytest.mark.parametrize(("got", "said"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_answers_that_do_not(got, said):
    with pytest.raises(AssertionError, match=said):
        Comparison().common("0", WANT, got)


QUESTION = Question(name="0", prompt=[5, 6], answer=40, precision=Precision.BF16)
LONG = [chosen(number, t99=-0.6) for number in range(40)]


def test_what_follows_a_tie_is_asked_for_again_after_the_tokens_of_the_cpu():
    asked = []

    def ask(questions):
        (question,) = questions
        asked.append((question.prompt, question.answer))
        rest = LONG[40 - question.answer :]
        return {"0": rest if len(asked) == 3 else [*rest[:9], chosen(99, -0.6), *[chosen(98)] * (len(rest) - 10)]}

    result = compare({"0": LONG}, [QUESTION], ask)
    assert (result.compared, result.ties) == (40, 2)
    assert asked == [([5, 6], 40), ([5, 6, *range(10)], 30), ([5, 6, *range(20)], 20)]


def test_tokens_that_always_differ_are_too_few_compared():
    def ask(questions):
        return {"0": [chosen(99, -0.6)] * questions[0].answer}

    with pytest.raises(AssertionError, match=f"{ROUNDS} of 40 tokens compared: tokens keep differing"):
        compare({"0": LONG}, [QUESTION], ask)


def test_each_core_captures_by_itself():
    made = []

    def fresh():
        made.append(RunAgain())
        return made[-1]

    decoder = random_decoder(SMALL, torch.device("cpu"))
    setup = Setup(decoder=decoder, backend=CPU, capture=fresh, num_frames=4, num_seqs=1, budget=16)
    for graphs in (True, False, True):
        make_core(setup, graphs=graphs)
    assert len(made) == 2
    assert setup_of(True, SMALL).capture is RunAgain  # a class: each call makes one


def test_a_precision_by_itself_need_not_swap():
    size = Size(prompt=20, answer=6, num_frames=40, at_once=2)
    found = tokens_case(True, size, [Precision.INT4])
    assert (found["precisions"], found["tokens"], found["compared"], found["swaps"]) == ("int4", 12, 12, 0)
    with pytest.raises(AssertionError, match="nothing was swapped"):
        tokens_case(True, size, list(Precision))
