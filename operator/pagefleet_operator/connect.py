"""Credentials for the API server, and the patience to wait for it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from pagefleet_operator.api import v1alpha1
from pagefleet_operator.api_server import ApiServer
from pagefleet_operator.errors import NotFoundError, OperatorError

logger = logging.getLogger(__name__)
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 15.0


async def load_configuration(environ: Mapping[str, str]) -> Configuration:
    """The pod's service account, else the file of KUBECONFIG. Raises `OperatorError` with one line."""
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in environ and not environ.get("KUBECONFIG"):
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            files = _kubeconfig(environ)
            await load_kube_config(config_file=files, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError, TypeError) as error:  # TypeError: its answer to an empty file
        raise OperatorError(f"no credentials for a cluster: {error}; run in a pod, or set KUBECONFIG") from error
    return configuration


def _kubeconfig(environ: Mapping[str, str]) -> str:
    """The file, or several; at least one of them exists."""
    files = environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(file).is_file() for file in files.split(os.pathsep)):
        raise FileNotFoundError(f"there is no {files}")
    return files


async def wait_for_resource(
    server: ApiServer, random: Callable[[], float], on_try: Callable[[], None] = lambda: None
) -> None:
    """Until the API server answers and serves LLMServices; one line per try."""
    wait_s = FIRST_WAIT_S
    while True:
        on_try()
        try:
            await server.probe(f"/apis/{v1alpha1.API_VERSION}")
        except NotFoundError:
            trouble = f"the cluster has no {v1alpha1.PLURAL}.{v1alpha1.GROUP} {v1alpha1.VERSION}: install the CRD"
        except OperatorError as error:
            trouble = str(error)
        else:
            return
        pause_s = wait_s * (0.5 + 0.5 * random())
        logger.warning("waiting for the cluster, next try in %.1f s: %s", pause_s, trouble)
        await asyncio.sleep(pause_s)
        wait_s = min(LONGEST_WAIT_S, wait_s * 2)
