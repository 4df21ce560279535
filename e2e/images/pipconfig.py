"""pip's configuration on this machine, for the builds: they reach the package registries as the host does.

It travels as build secrets, so no address, credential or certificate of this machine ends up in an image.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CA_IN_BUILD: Final = "/run/pip-ca.crt"
CONFIG_ID: Final = "pip-config"
CA_ID: Final = "pip-ca"

PASSED_ON: Final = frozenset(
    {"index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries", "no-index"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipConfig:
    """What the builds are given."""

    text: str
    certificates: Path | None
    """A bundle that pip trusts instead of its own."""

    def write_secrets(self, folder: Path) -> dict[str, Path]:
        """Secret id -> file."""
        config = folder / "pip.conf"
        config.touch(mode=0o600)  # an address may hold a password
        config.write_text(self.text)
        secrets = {CONFIG_ID: config}
        if self.certificates is not None:
            secrets[CA_ID] = self.certificates
        return secrets


def read_pip_config(environ: Mapping[str, str]) -> PipConfig:
    """As `pip config list` shows it for this interpreter's pip: files and environment."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(argv, check=False, capture_output=True, text=True, env=dict(environ))
    return translate_pip_config(listed.stdout.splitlines(), environ)


def translate_pip_config(listed: Iterable[str], environ: Mapping[str, str]) -> PipConfig:
    """Keep what decides how pip reaches a registry. Sections yield to the environment, as in pip."""
    values: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed:
        section, _, rest = line.partition(".")
        key, assigned, value = rest.partition("=")
        if assigned and section in values:
            values[section][key] = str(ast.literal_eval(value))
    merged = {**values["global"], **values["install"], **values[":env:"]}
    bundle = merged.get("cert") or environ.get("REQUESTS_CA_BUNDLE")
    chosen = {key: value for key, value in sorted(merged.items()) if key in PASSED_ON}
    links = [word for word in merged.get("find-links", "").split() if word.startswith(("http://", "https://"))]
    if links:
        chosen["find-links"] = " ".join(links)
    if bundle:
        chosen["cert"] = CA_IN_BUILD
    lines = [f"{key} = {' '.join(value.split())}\n" for key, value in chosen.items()]
    return PipConfig(text="[global]\n" + "".join(lines), certificates=Path(bundle) if bundle else None)
