"""A runner without a model, for tests of everything that schedules: it computes what each frame would hold.

`KVModel` carries out a `ScheduleOutput` move by move. A token's "KV" is a hash over its id, the sealed groups before
its own group and the raw KV inside it, which is all that a real model's KV depends on. So a wrong frame, a wrong
precision, a race or a wrong order shows as another value, and the token that is "sampled" from it as another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagefleet_engine.contract.kv import Layout
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import CopyFrame, Demote, GroupWrite
from pagefleet_engine.memory.table import SealedGroup
from pagefleet_engine.request import FinishReason, Request, RequestState, SamplingParams
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.output import ScheduledRequest, ScheduleOutput
from pagefleet_engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyLayout:
    """Groups small enough to write their frames down in a test."""

    block_size: int = 4

    def tokens_per_frame(self, precision: Precision) -> int:
        """BF16 4, FP8 8, INT8 7, INT4 14 with blocks of 4."""
        match precision:
            case Precision.BF16:
                return self.block_size
            case Precision.FP8_E4M3 | Precision.FP8_E5M2:
                return 2 * self.block_size
            case Precision.INT8:
                return 2 * self.block_size - 1
            case Precision.INT4:
                return 4 * self.block_size - 2


# Numbers, because the hash of a string differs from one process to the next.
_CODES = {precision: code for code, precision in enumerate(Precision, start=1)}


class TokenKV(NamedTuple):
    """The raw KV of one token."""

    position: int
    token_id: int
    value: int


class SealedKV(NamedTuple):
    """A sealed frame. `tokens` and `start` say whose it is, `value` what a query would see of it."""

    start: int
    tokens: tuple[int, ...]
    precision: Precision
    value: int


Content = list[TokenKV] | SealedKV | None


class KVModelError(AssertionError):
    """The schedule would have given a request other KV than its own."""


def seal(raw: Sequence[TokenKV], precision: Precision) -> SealedKV:
    """What sealing a full group makes of it."""
    tokens = tuple(kv.token_id for kv in raw)
    return SealedKV(raw[0].position, tokens, precision, hash((_CODES[precision], tuple(kv.value for kv in raw))))


def sample(value: int, seed: int | None, vocab_size: int) -> int:
    """The token that follows KV with this value."""
    return hash((value, seed or 0)) % vocab_size


def solo_answer(
    prompt: Sequence[int],
    num_tokens: int,
    *,
    precision_at: Callable[[int], Precision],
    layout: Layout,
    seed: int | None = None,
    vocab_size: int = 1000,
) -> list[int]:
    """What a request answers that has a machine for itself: no frames, no chunks, no sharing.

    `precision_at` gives the precision of the group that begins at a position.
    """
    known, context, raw = list(prompt), 0, list[TokenKV]()
    for position in range(len(prompt) + num_tokens - 1):
        value = hash((known[position], context, tuple(kv.value for kv in raw)))
        if position == len(known) - 1:
            known.append(sample(value, seed, vocab_size))
        raw.append(TokenKV(position, known[position], value))
        precision = precision_at(raw[0].position)
        if len(raw) == layout.tokens_per_frame(precision):
            context = hash((context, seal(raw, precision).value))
            raw = []
    return known[len(prompt) :]


class KVModel:
    """Frames and host slots with contents, and a sampler that depends on nothing else."""

    def __init__(self, *, num_frames: int, num_slots: int, block_size: int, vocab_size: int = 1000) -> None:
        self.frames: list[Content] = [None] * num_frames
        self.slots: list[Content] = [None] * num_slots
        self._block_size = block_size
        self._vocab_size = vocab_size
        # What a runner that copies tables piece by piece would have, by request, with the epoch that it is of.
        self._copies: dict[str, tuple[int, list[SealedGroup]]] = {}

    def execute(self, output: ScheduleOutput) -> dict[str, list[int]]:
        """Carry out a step and return the sampled tokens. Raises `KVModelError` for KV that is not the request's."""
        self._move(output)
        self._check_apart(output)
        self._check_copies(output)
        return {
            request.request_id: [token] for request in output.requests if (token := self._compute(request)) is not None
        }

    def _move(self, output: ScheduleOutput) -> None:
        for demotion in output.demote:
            self._demote(demotion)
        _check_distinct("host slots written", [move.slot for move in output.swap_out])
        for out in output.swap_out:
            content = self.frames[out.frame]
            self.slots[out.slot] = list(content) if isinstance(content, list) else content
        _check_distinct("frames filled", [move.frame for move in output.swap_in])
        for back in output.swap_in:
            content = self.slots[back.slot]
            self.frames[back.frame] = list(content) if isinstance(content, list) else content
        self._copy(output.copy)

    def _demote(self, move: Demote) -> None:
        parts = [self.frames[frame] for frame in move.frames]
        sealed = [part for part in parts if isinstance(part, SealedKV) and part.precision is Precision.BF16]
        tokens = tuple(token for part in sealed for token in part.tokens)
        if len(sealed) != len(parts) or len(tokens) != move.num_tokens:
            raise KVModelError(f"{move} finds {parts}")
        value = hash((-_CODES[move.precision], tuple(part.value for part in sealed)))
        self.frames[move.frames[0]] = SealedKV(sealed[0].start, tokens, move.precision, value)
        for frame in move.frames[1:]:
            self.frames[frame] = None

    def _copy(self, copies: Sequence[CopyFrame]) -> None:
        _check_distinct("frames copied", [*{move.source for move in copies}, *(move.target for move in copies)])
        for move in copies:
            content = self.frames[move.source]
            if not isinstance(content, list):
                raise KVModelError(f"{move} copies a frame that is not open: {content}")
            self.frames[move.target] = list(content)

    def _check_apart(self, output: ScheduleOutput) -> None:
        """Requests compute side by side, so none may read or write what another one writes or what still arrives."""
        arriving = {move.frame for move in output.swap_in}
        written: set[int] = set()
        for request in output.requests:
            mine = {frame for write in request.writes for frame in _written(write, self._block_size)}
            if clash := mine & written:
                raise KVModelError(f"{request.request_id} writes frames {clash}, and so does another request")
            written |= mine
        for request in output.requests:
            mine = {frame for write in request.writes for frame in _written(write, self._block_size)}
            read = {group.frame for group in request.context} | {f for write in request.writes for f in write.frames}
            if clash := read & (written - mine | arriving):
                raise KVModelError(f"{request.request_id} reads frames {clash}, which others write in the same step")

    def _check_copies(self, output: ScheduleOutput) -> None:
        """With the same epoch, what is new in a table comes after what was known."""
        for request_id in output.ended:
            self._copies.pop(request_id, None)
        for request in output.requests:
            epoch, copy = self._copies.get(request.request_id, (None, []))
            known = copy if epoch == request.context.epoch else []
            known += request.context.since(len(known))
            if known != list(request.context):
                raise KVModelError(f"{request.request_id} has an old epoch for a table that was changed")
            self._copies[request.request_id] = (request.context.epoch, known)

    def _compute(self, request: ScheduledRequest) -> int | None:
        context = self._read_context(request)
        at, value = request.start, 0
        for write in request.writes:
            if write.start + write.num_written != at:
                raise KVModelError(f"{request.request_id} writes at {write.start + write.num_written}, not at {at}")
            raw = self._read_open(request, write)
            for token_id in request.token_ids[at - request.start : at - request.start + write.num_new]:
                value = hash((token_id, context, tuple(kv.value for kv in raw)))
                raw.append(TokenKV(at, token_id, value))
                at += 1
            if self._store(write, raw):
                context = hash((context, seal(raw, write.precision).value))
        if at != request.start + len(request.token_ids):
            raise KVModelError(f"{request.request_id} has {len(request.token_ids)} tokens, but writes up to {at}")
        return sample(value, request.sampling.seed, self._vocab_size) if request.samples else None

    def _read_context(self, request: ScheduledRequest) -> int:
        at, seen = 0, 0
        for group in request.context:
            content = self.frames[group.frame]
            tokens = tuple(request.known_token_ids[at : at + group.length])
            if (
                not isinstance(content, SealedKV)
                or (content.start, content.tokens, content.precision) != (group.start, tokens, group.precision)
                or group.start != at
            ):
                raise KVModelError(f"{request.request_id} expects {tokens} in {group}, which holds {content}")
            seen = hash((seen, content.value))
            at += group.length
        if at != request.writes[0].start:
            raise KVModelError(f"{request.request_id} has context up to {at}, but writes {request.writes[0]}")
        return seen

    def _read_open(self, request: ScheduledRequest, write: GroupWrite) -> list[TokenKV]:
        raw: list[TokenKV] = []
        for frame in write.frames[: -(-write.num_written // self._block_size)]:
            content = self.frames[frame]
            if not isinstance(content, list):
                raise KVModelError(f"{request.request_id} expects an open frame {frame}, which holds {content}")
            raw += content[: write.num_written - len(raw)]
        want = [
            (position, request.known_token_ids[position])
            for position in range(write.start, write.start + write.num_written)
        ]
        if [(kv.position, kv.token_id) for kv in raw] != want:
            raise KVModelError(f"{request.request_id} expects {want} in frames {write.frames}, which hold {raw}")
        return raw

    def _store(self, write: GroupWrite, raw: list[TokenKV]) -> bool:
        if write.seals != (len(raw) == write.length):
            raise KVModelError(f"{write} has {len(raw)} tokens")
        if write.seals:
            self.frames[write.frames[0]] = seal(raw, write.precision)
            return True
        if len(write.frames) != -(-len(raw) // self._block_size):
            raise KVModelError(f"{write} has {len(write.frames)} frames for {len(raw)} tokens")
        first = write.num_written // self._block_size
        for index in range(first, len(write.frames)):
            self.frames[write.frames[index]] = raw[index * self._block_size : (index + 1) * self._block_size]
        return False


def _written(write: GroupWrite, block_size: int) -> set[int]:
    """Frames of this group that a runner may write to."""
    frames = set(write.frames[write.num_written // block_size :])
    return frames | {write.frames[0]} if write.seals else frames


class AskedPrecisions:
    """What each request was asked to be kept in, group by group, whatever the scheduler has made of it.

    Tell it of every request after `add`, of every change, and of all that live after every `update`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._runs: dict[str, list[tuple[int, Precision]]] = {}
        """By request: groups from this position on were asked in this precision."""
        self._reached: dict[str, int] = {}
        """Most tokens of a request that were ever computed."""

    def note(self, request: Request) -> None:
        """A request has been added, or a step has ended."""
        name, parent = request.request_id, self._runs.get(request.fork_of or "")
        runs = self._runs.setdefault(name, [(0, request.precision)])
        reached = self._reached.get(name, 0)
        if parent is not None and not reached and request.num_computed and request.state is RequestState.WAITING:
            # a fork has taken over what its parent had begun; its own precision holds from there
            begun = self._begun(parent, request.num_computed)
            runs[:] = [run for run in parent if run[0] < begun] + [(begun, request.precision)]
        self._reached[name] = max(reached, request.num_computed)

    def change(self, request: Request, precision: Precision) -> None:
        """The precision of a request was changed: the next group that it begins has the new one."""
        runs = self._runs[request.request_id]
        begun = self._begun(runs, self._reached[request.request_id])
        runs[:] = [run for run in runs if run[0] < begun] + [(begun, precision)]

    def of(self, request: Request) -> Callable[[int], Precision]:
        """`precision_at` of `solo_answer`."""
        runs = self._runs[request.request_id]
        return lambda start: _asked_at(runs, start)

    def _begun(self, runs: Sequence[tuple[int, Precision]], num_tokens: int) -> int:
        """End of the last group that has one of the first tokens."""
        end = 0
        while end < num_tokens:
            end += self._layout.tokens_per_frame(_asked_at(runs, end))
        return end


def _asked_at(runs: Sequence[tuple[int, Precision]], start: int) -> Precision:
    return next(precision for begin, precision in reversed(runs) if begin <= start)


def _check_distinct(what: str, numbers: Sequence[int]) -> None:
    if len(set(numbers)) != len(numbers):
        raise KVModelError(f"{what} twice in one step: {sorted(numbers)}")


class Harness:
    """A scheduler with a `KVModel` behind it, small enough to follow by hand. Checks the books around every step."""

    def __init__(self, *, vocab_size: int = 1000, **changes: Any) -> None:
        sizes = {"num_frames": 10, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 200}
        self.config = SchedulerConfig(**(sizes | changes))
        self.layout = TinyLayout()
        self.scheduler = Scheduler(self.config, self.layout)
        self.model = KVModel(
            num_frames=self.config.num_frames,
            num_slots=self.config.num_host_frames,
            block_size=self.layout.block_size,
            vocab_size=vocab_size,
        )
        self.reasons: dict[str, FinishReason] = {}
        self._asked = AskedPrecisions(self.layout)
        self._vocab_size = vocab_size

    def add(self, request_id: str, prompt: Sequence[int], max_tokens: int = 4, **changes: Any) -> Request:
        """Queue a request that takes the most likely token."""
        sampling = SamplingParams(max_tokens=max_tokens, seed=changes.pop("seed", None))
        request = Request(request_id=request_id, prompt_token_ids=list(prompt), sampling=sampling, **changes)
        self.scheduler.add(request)
        self._asked.note(request)
        return request

    def set_precision(self, request: Request, precision: Precision) -> None:
        """Change the precision of a request that runs or waits."""
        self.scheduler.set_precision(request.request_id, precision)
        self._asked.change(request, precision)

    def step(self, failed: Collection[str] = ()) -> ScheduleOutput:
        """Plan a step, compute it, tell the scheduler."""
        output = self.scheduler.schedule()
        self.scheduler.check_invariants()
        sampled = self.model.execute(output)
        for update in self.scheduler.update(output, sampled, failed):
            if update.finish_reason is not None:
                self.reasons[update.request_id] = update.finish_reason
        for request in self.scheduler.requests.values():
            self._asked.note(request)
        self.scheduler.check_invariants()
        return output

    def run(self, patience: int = 1000) -> int:
        """Step until all requests have ended. Returns the number of steps; raises when patience ends first."""
        for steps in range(patience):
            if not self.scheduler.has_work:
                return steps
            self.step()
        raise AssertionError(f"requests still there after {patience} steps: {dict(self.scheduler.requests)}")

    def until(self, condition: Callable[[], bool], patience: int = 100) -> ScheduleOutput:
        """Step until the condition holds; returns the last step."""
        for _ in range(patience):
            output = self.step()
            if condition():
                return output
        raise AssertionError(f"not so after {patience} steps: {self.scheduler.stats()}")

    def is_solo(self, request: Request) -> bool:
        """The answer so far is the one that the request would have got alone, in the precisions that were asked for."""
        return request.token_ids[request.num_prompt_tokens :] == solo_answer(
            request.prompt_token_ids,
            request.num_output_tokens,
            precision_at=self._asked.of(request),
            layout=self.layout,
            seed=request.sampling.seed,
            vocab_size=self._vocab_size,
        )
