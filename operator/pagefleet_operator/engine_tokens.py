"""Control tokens by pod: signed once, used until half of their life is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pagefleet_engine.contract.tokens import sign

LIFETIME_S: Final = 300
RENEW_AFTER_S: Final = 150
MAX_TOKENS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    token: str
    key: Ed25519PrivateKey
    at_s: float

    def fits(self, key: Ed25519PrivateKey, now_s: float) -> bool:
        """A clock that was set back makes a token look young, so its age is judged both ways."""
        return self.key is key and 0 <= now_s - self.at_s < RENEW_AFTER_S


class TokenCache:
    """At most `max_tokens` tokens; a pod that has gone falls out with age."""

    def __init__(self, unix_time: Callable[[], float], max_tokens: int = MAX_TOKENS) -> None:
        self._unix_time = unix_time
        self._max_tokens = max_tokens
        self._signed: dict[str, _Signed] = {}

    def __len__(self) -> int:
        return len(self._signed)

    def token(self, pod_uid: str, key: Ed25519PrivateKey) -> str:
        """A token for that pod, signed with that key."""
        now_s = self._unix_time()
        known = self._signed.get(pod_uid)
        if known is not None and known.fits(key, now_s):
            return known.token
        if len(self._signed) >= self._max_tokens:
            self._signed = {uid: signed for uid, signed in self._signed.items() if signed.fits(key, now_s)}
        if len(self._signed) >= self._max_tokens:
            self._signed.clear()
        token = sign(key, audience=pod_uid, now_s=int(now_s), lifetime_s=LIFETIME_S)
        self._signed[pod_uid] = _Signed(token=token, key=key, at_s=now_s)
        return token
