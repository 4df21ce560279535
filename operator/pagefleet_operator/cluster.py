"""What the operator needs of a cluster, as one small Protocol.

Its real implementation is `api_server.ApiServer`, its fake one `testing.FakeCluster`. Reads are consistent (no cache,
no `resourceVersion=0`), so a plan never rests on an old list.

Children are made with POST, not with server-side apply: an apply would silently take over somebody else's object of the
same name, a POST is refused. Changes are JSON merge patches of the fields that differ, with uid and resourceVersion as
preconditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pagefleet_operator.resources import Object, Resource


class Cluster(Protocol):
    """Every method may raise `ApiError` and `UnreachableError`."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object, or None when there is none."""

    async def find(self, resource: Resource, namespace: str | None, selector: Mapping[str, str]) -> list[Object]:
        """All objects with these labels; `namespace` None means every namespace."""

    async def create(self, resource: Resource, manifest: Object) -> Object:
        """Create, never overwrite. Raises `AlreadyExistsError`."""

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        subresource: str | None = None,
        by_keys: bool = False,
    ) -> Object:
        """JSON merge patch; `by_keys`: a strategic merge patch, which merges lists such as conditions by their keys.

        Raises `ConflictError` when `metadata.uid` or `.resourceVersion` in it do not match.
        """

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete this very object; `grace_s` shortens a pod's grace period.

        Raises `NotFoundError`, or `ConflictError` when the name has another uid by now.
        """
