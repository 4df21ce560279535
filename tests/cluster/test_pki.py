"""Who the certificates say their holders are, and where they may serve."""

from __future__ import annotations

import stat
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.layout import Layout, Node
from e2e.cluster.pki import write_pki

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
CLIENT = [ExtendedKeyUsageOID.CLIENT_AUTH]
BOTH = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    layout = Layout(state=tmp_path_factory.mktemp("cluster"), nodes=(Node(number=1), Node(number=2)))
    write_pki(layout, NOW)
    return layout.pki


def read(pki, name):
    return x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())


@pytest.mark.parametrize(
    ("name", "common_name", "organizations", "usages"),
    [
        ("kube-apiserver", "kube-apiserver", [], BOTH),
        ("admin", "pagefleet-admin", ["system:masters"], CLIENT),
        ("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"], CLIENT),
        ("kube-controller-manager", "system:kube-controller-manager", [], CLIENT),
        ("kube-scheduler", "system:kube-scheduler", [], CLIENT),
        ("kube-proxy", "system:kube-proxy", [], CLIENT),
        ("coredns", "pagefleet-coredns", ["system:masters"], CLIENT),
        ("kubelet-node1", "system:node:node1", ["system:nodes"], BOTH),
        ("kubelet-node2", "system:node:node2", ["system:nodes"], BOTH),
    ],
)
def test_each_component_has_its_identity(pki, name, common_name, organizations, usages):
    certificate = read(pki, name)
    subject = certificate.subject
    assert [word.value for word in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [common_name]
    assert [word.value for word in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == organizations
    assert list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
    certificate.verify_directly_issued_by(read(pki, "ca"))


@pytest.mark.parametrize(
    ("name", "names", "addresses"),
    [
        (
            "kube-apiserver",
            [
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ],
            ["127.0.0.1", "10.202.0.1", "10.201.1.1"],
        ),
        ("kubelet-node1", ["node1"], ["10.201.1.1"]),
        ("kubelet-node2", ["node2"], ["10.201.2.1"]),
    ],
)
def test_servers_are_valid_where_they_are_reached(pki, name, names, addresses):
    found = read(pki, name).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == names
    assert [str(address) for address in found.get_values_for_type(x509.IPAddress)] == addresses


def test_certificates_live_from_an_hour_ago_for_a_year(pki):
    certificate = read(pki, "admin")
    assert certificate.not_valid_before_utc == datetime(2026, 1, 2, 11, tzinfo=UTC)
    assert certificate.not_valid_after_utc == datetime(2027, 1, 2, 12, tzinfo=UTC)


def test_keys_are_for_their_owner_alone_and_match_their_certificates(pki):
    keys = sorted(pki.glob("*.key"))
    assert [path.stem for path in keys if path.stem != "sa"] == sorted(path.stem for path in pki.glob("*.crt"))
    for path in keys:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if path.stem != "sa":
            assert read(pki, path.stem).public_key() == key.public_key()


def test_every_cluster_has_an_authority_of_its_own(pki, tmp_path):
    other = Layout(state=tmp_path)
    write_pki(other, NOW)
    assert (other.pki / "ca.crt").read_bytes() != (pki / "ca.crt").read_bytes()
