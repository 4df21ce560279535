"""`--runtime-config-file`: what the service's annotation says an engine should start with, as a downward-API file.

An empty file is an annotation that nobody has set, and says nothing. A file that is not there is a wrong path, and an
engine that ignored it would serve without its routes.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.routes import check_names
from pagefleet_engine.server.schemas import first_problem

FLAG = "--runtime-config-file"
_MAX_BYTES = 262_144
"""As much as Kubernetes allows all annotations of an object together."""


def read_start(arguments: EngineArguments) -> RuntimeStart:
    """Raises `StartupError` with the flag and the field. What depends on the model is checked when it is loaded."""
    if arguments.runtime_config_file is None:
        return RuntimeStart()
    path = Path(arguments.runtime_config_file)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StartupError(f"{FLAG} {path}: {error.strerror}: give the path of a file, which may be empty") from None
    if len(content) > _MAX_BYTES:
        raise StartupError(f"{FLAG} {path}: is larger than {_MAX_BYTES} bytes")
    try:
        start = parse_start(content)
    except ApiError as error:
        raise StartupError(f"{FLAG} {path}: {error.body.message}") from None
    if start.cap is not None and not 1 <= start.cap <= arguments.max_num_seqs:
        raise StartupError(f"{FLAG} {path}: cap: {start.cap}: must be 1 to {arguments.max_num_seqs} (--max-num-seqs)")
    return start


def parse_start(content: bytes) -> RuntimeStart:
    """Raises `ApiError` with the first field that is wrong."""
    if not content.strip():
        return RuntimeStart()
    try:
        start = RuntimeStart.model_validate_json(content)
    except ValidationError as error:
        raise first_problem(error) from None
    if start.routes is not None:
        check_names(start.routes)
    return start


def precisions_in_use(arguments: EngineArguments, start: RuntimeStart, max_model_len: int) -> set[Precision]:
    """Every precision that a request of this start may have to be kept in.

    Not that of a control share: who does not fit into the pool in it is no control.
    """
    used = {arguments.kv_cache_dtype}
    for route in start.routes or ():
        used.add(route.precision)
        if route.max_context is not None and route.max_context < max_model_len:
            used.add(route.control_precision)
    return used
