"""The operator's settings: flags, with the environment for what only the pod knows. Built once and passed down."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What the process was started with. Raises `ValueError`, naming the flag, for values out of range."""

    namespaces: tuple[str, ...] = ()  # none: all of them
    health_port: int = 8080
    lease_namespace: str = "default"
    lease_name: str = "pagefleet-operator"
    signing_secret_namespace: str = "default"
    signing_secret_name: str = "pagefleet-signing-keys"
    signing_key_days: int = 30
    alert_token_file: str | None = None  # None: no notifications are taken
    alert_port: int = 8081
    loop_pace: float = 1.0
    log_format: Literal["text", "json"] = "text"
    resync_s: float = 45.0
    workers: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.health_port <= 65535:
            raise ValueError(f"--health-port {self.health_port}: use 1 to 65535, or 0 for any free port")
        if not 0.02 <= self.loop_pace <= 10:
            raise ValueError(f"--loop-pace {self.loop_pace:g}: use 0.02 to 10")
        if not 0 <= self.alert_port <= 65535:
            raise ValueError(f"--alert-port {self.alert_port}: use 1 to 65535, or 0 for any free port")
        if not 1 <= self.resync_s <= 3600:
            raise ValueError(f"--resync-seconds {self.resync_s:g}: use 1 to 3600")
        if not 1 <= self.workers <= 256:
            raise ValueError(f"--workers {self.workers}: use 1 to 256")
        if not 1 <= self.signing_key_days <= 3650:
            raise ValueError(f"--signing-key-days {self.signing_key_days}: use 1 to 3650")
        if "" in (self.signing_secret_namespace, self.signing_secret_name):
            raise ValueError("--signing-secret-namespace and --signing-secret-name must not be empty")
        if "" in (self.lease_namespace, self.lease_name, *self.namespaces):
            raise ValueError("--namespace, --lease-namespace and --lease-name must not be empty")


def parse_settings(argv: Sequence[str], environ: Mapping[str, str]) -> OperatorSettings:
    """Raises `ValueError` with one line; `--help` and unknown flags leave through argparse."""
    found = build_parser(environ).parse_args(list(argv))
    return OperatorSettings(
        namespaces=tuple(dict.fromkeys(found.namespace)),
        health_port=found.health_port,
        lease_namespace=found.lease_namespace,
        lease_name=found.lease_name,
        signing_secret_namespace=found.signing_secret_namespace,
        signing_secret_name=found.signing_secret_name,
        signing_key_days=found.signing_key_days,
        alert_token_file=found.alert_token_file,
        alert_port=found.alert_port,
        loop_pace=found.loop_pace,
        log_format=found.log_format,
        resync_s=found.resync_seconds,
        workers=found.workers,
    )


def build_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser behind `parse_settings`."""
    parser = argparse.ArgumentParser(
        prog="pagefleet-operator",
        description="Runs LLMServices. The cluster is the pod's own, or the one of KUBECONFIG.",
        allow_abbrev=False,
    )
    own = environ.get("POD_NAMESPACE") or "default"
    add = parser.add_argument
    add("--namespace", action="append", default=[], metavar="NS", help="serve this namespace only; repeatable")
    add("--health-port", type=int, default=8080, metavar="PORT", help="/healthz, /readyz, /metrics (default: 8080)")
    add("--lease-namespace", default=own, metavar="NS", help=f"where the Lease is (default: {own})")
    add("--lease-name", default="pagefleet-operator", metavar="NAME", help="the Lease (default: pagefleet-operator)")
    secret, days = "pagefleet-signing-keys", "days after which a new signing key is made (default: 30)"
    add("--signing-secret-namespace", default=own, metavar="NS", help=f"where the signing keys are (default: {own})")
    add("--signing-secret-name", default=secret, metavar="NAME", help=f"their Secret (default: {secret})")
    add("--signing-key-days", type=int, default=30, metavar="N", help=days)
    add("--alert-token-file", metavar="FILE", help="take Alertmanager's notifications that bring this bearer token")
    add("--alert-port", type=int, default=8081, metavar="PORT", help="POST /alerts (default: 8081)")
    add("--loop-pace", type=float, default=1.0, metavar="P", help="times of the control loop, as a factor (default: 1)")
    add("--log-format", choices=("text", "json"), default="text", help="one line per entry (default: text)")
    add("--resync-seconds", type=float, default=45.0, metavar="S", help="look at every service so often (default: 45)")
    add("--workers", type=int, default=8, metavar="N", help="services reconciled at once (default: 8)")
    return parser
