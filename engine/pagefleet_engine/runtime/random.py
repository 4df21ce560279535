"""Random numbers as a pure function of (seed, counter): no state to lose on a swap, a recompute or a restart."""

from __future__ import annotations

_MASK = 2**64 - 1


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) with 53 random bits.

    Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), the first over the seed, the second over its
    result advanced `counter + 1` steps of the golden-ratio sequence.
    """
    state = (_mix(seed & _MASK) + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(state) >> 11) / 2**53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
