"""The fields of a beam search: `use_beam_search`, `beam_width`, `length_penalty`, and what makes no sense beside them.

Pure. A field that would change a sampled answer is refused, not dropped in silence: a beam search draws nothing.
"""

from __future__ import annotations

import math
from typing import Any, Final

from pagefleet_engine.request import SamplingParams
from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.job import BeamOptions
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schemas import GenerationBody

_LONGEST_PENALTY: Final = 10.0

# Field → values that ask for nothing, besides null.
_NOT_WITH_BEAMS: Final[dict[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "best_of": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "stop": ([], ""),
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}


def check_beams(body: GenerationBody, limits: Limits) -> BeamOptions | None:
    """None where the client wants no beam search. Raises `ApiError`."""
    if not body.use_beam_search:
        for name, harmless in (("beam_width", ()), ("length_penalty", (1,))):
            value = getattr(body, name)
            if value is not None and value not in harmless:
                raise invalid(f"{name}: only with use_beam_search set to true", param=name)
        return None
    for name, harmless in _NOT_WITH_BEAMS.items():
        value = getattr(body, name, None)
        if value is not None and value not in harmless:
            raise invalid(f"{name}: not served together with use_beam_search: leave it out", param=name)
    num_choices = body.n or 1
    width = num_choices if body.beam_width is None else body.beam_width
    if not num_choices <= width <= limits.n:
        message = f"beam_width: {width}: must be {num_choices} (n) to {limits.n}"
        raise invalid(message, param="beam_width")
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    if not math.fabs(penalty) <= _LONGEST_PENALTY:
        raise invalid(f"length_penalty: must be -{_LONGEST_PENALTY:g} to {_LONGEST_PENALTY:g}", param="length_penalty")
    return BeamOptions(width=width, length_penalty=penalty)


def check_num_choices(sampling: SamplingParams, beam: BeamOptions | None, num_prompts: int, limits: Limits) -> None:
    """What one request makes of all its prompts together is bounded."""
    made, param = sampling.n, "n"
    if beam is not None:
        made, param = beam.width, "beam_width"
    elif sampling.best_of is not None:
        made, param = sampling.best_of, "best_of"
    if num_prompts * made > limits.choices:
        raise invalid(
            f"{param}: {made} choices for {num_prompts} prompts; at most {limits.choices} in all", param=param
        )
