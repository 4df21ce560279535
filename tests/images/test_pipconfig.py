"""What the builds learn of pip's configuration."""

from pathlib import Path

import pytest

from e2e.images.pipconfig import PipConfig, translate_pip_config

TRANSLATIONS = {
    "nothing configured": ([], {}, PipConfig(text="[global]\n", certificates=None)),
    "a mirror from a file, a certificate bundle from the environment": (
        ["global.index-url='https://user:secret@mirror.example/simple'", ":env:.cert='/ca.crt'"],
        {},
        PipConfig(
            text="[global]\nindex-url = https://user:secret@mirror.example/simple\ncert = /run/pip-ca.crt\n",
            certificates=Path("/ca.crt"),
        ),
    ),
    "the environment wins over a section, a section over global": (
        [":env:.timeout='3'", "global.timeout='1'", "install.timeout='2'", "global.retries='9'", "install.retries='8'"],
        {},
        PipConfig(text="[global]\nretries = 8\ntimeout = 3\n", certificates=None),
    ),
    "folders of wheels and what has nothing to do with registries stay behind": (
        ["global.find-links='/wheels https://wheels.example/\\n/more'", ":env:.disable-pip-version-check='1'"],
        {},
        PipConfig(text="[global]\nfind-links = https://wheels.example/\n", certificates=None),
    ),
    "several lines become one": (
        ["global.trusted-host='\\na.example\\nb.example'"],
        {},
        PipConfig(text="[global]\ntrusted-host = a.example b.example\n", certificates=None),
    ),
    "the bundle of requests, which pip obeys too": (
        [],
        {"REQUESTS_CA_BUNDLE": "/bundle.crt"},
        PipConfig(text="[global]\ncert = /run/pip-ca.crt\n", certificates=Path("/bundle.crt")),
    ),
}


@pytest.mark.parametrize(("listed", "environ", "want"), TRANSLATIONS.values(), ids=TRANSLATIONS.keys())
def test_translate_pip_config(listed, environ, want):
    assert translate_pip_config(listed, environ) == want


def test_secrets_are_the_configuration_and_the_bundle(tmp_path):
    config = PipConfig(text="[global]\n", certificates=Path("/ca.crt"))
    secrets = config.write_secrets(tmp_path)
    assert secrets == {"pip-config": tmp_path / "pip.conf", "pip-ca": Path("/ca.crt")}
    assert secrets["pip-config"].read_text() == "[global]\n"
    assert (tmp_path / "pip.conf").stat().st_mode & 0o077 == 0
