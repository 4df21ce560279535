"""The cluster's certificates: one authority, serving certificates, and one client certificate per component."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.layout import API_SERVICE_ADDRESS, CLUSTER_DOMAIN, Layout, Node

LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one certificate is for. `addresses` and `names` make it a serving certificate, else it is a client's."""

    file: str
    common_name: str
    organization: str | None = None
    addresses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        return bool(self.addresses or self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority's key and certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def list_identities(nodes: Sequence[Node]) -> list[Identity]:
    """Every certificate of a cluster with these nodes."""
    service_names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    return [
        Identity(
            file="kube-apiserver",
            common_name="kube-apiserver",
            addresses=("127.0.0.1", API_SERVICE_ADDRESS, nodes[0].address),
            names=("localhost", *service_names, f"kubernetes.default.svc.{CLUSTER_DOMAIN}"),
        ),
        Identity(file="admin", common_name="pagefleet-admin", organization="system:masters"),
        Identity(file="kubelet-client", common_name="kube-apiserver-kubelet-client", organization="system:masters"),
        Identity(file="kube-controller-manager", common_name="system:kube-controller-manager"),
        Identity(file="kube-scheduler", common_name="system:kube-scheduler"),
        Identity(file="kube-proxy", common_name="system:kube-proxy"),
        # Of the group that needs no roles: a role made after the start would come seconds too late.
        Identity(file="coredns", common_name="pagefleet-coredns", organization="system:masters"),
        *(
            Identity(
                file=f"kubelet-{node.name}",
                common_name=f"system:node:{node.name}",
                organization="system:nodes",
                addresses=(node.address,),
                names=(node.name,),
            )
            for node in nodes
        ),
    ]


def make_authority(common_name: str, now: datetime) -> Authority:
    """A self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key=key, certificate=builder.sign(key, hashes.SHA256()))


def issue(
    authority: Authority, identity: Identity, now: datetime
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key and its certificate. A node's serves and asks, so both usages are in every serving certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    words = [x509.NameAttribute(NameOID.COMMON_NAME, identity.common_name)]
    if identity.organization:
        words.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.organization))
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if identity.serves else [])]
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        x509.CertificateBuilder(
            authority.certificate.subject, x509.Name(words), key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    if identity.serves:
        builder = builder.add_extension(x509.SubjectAlternativeName(list_subject_names(identity)), critical=False)
    return key, builder.sign(authority.key, hashes.SHA256())


def list_subject_names(identity: Identity) -> list[x509.GeneralName]:
    """Names first, then addresses."""
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in identity.addresses]
    return [*(x509.DNSName(name) for name in identity.names), *addresses]


def write_pki(layout: Layout, now: datetime) -> None:
    """Make everything anew under `layout.pki`: ca.crt, ca.key, sa.key, sa.pub and FILE.crt, FILE.key per identity."""
    layout.pki.mkdir(parents=True, mode=0o700)
    authority = make_authority("pagefleet-local", now)
    write_pair(layout.pki, "ca", authority.key, authority.certificate)
    for identity in list_identities(layout.nodes):
        write_pair(layout.pki, identity.file, *issue(authority, identity, now))
    tokens = ec.generate_private_key(ec.SECP256R1())
    write_secret(layout.pki / "sa.key", encode_key(tokens))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    (layout.pki / "sa.pub").write_bytes(tokens.public_key().public_bytes(serialization.Encoding.PEM, spki))


def write_pair(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """NAME.key and NAME.crt."""
    write_secret(folder / f"{name}.key", encode_key(key))
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_secret(path: Path, content: bytes) -> None:
    """Readable by the owner alone from the first byte on."""
    path.touch(mode=0o600)
    path.write_bytes(content)
