"""Runs schemathesis over the OpenAPI document of the real server with a tiny model.

    python -m tests.engine.server.conformance --tool build/schemathesis/bin/schemathesis --examples 50 --seed 1

One of its checks is left out: the document gives types and not every range, so a value of the right type may be
refused.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from pagefleet_engine.server.testing import running_server
from tests.engine.server.tiny import running_tiny_engine

LEFT_OUT = "positive_data_acceptance"


async def run(tool: Path, *, examples: int, seed: int) -> int:
    """The tool's exit status: 0 when every check holds."""
    async with running_tiny_engine(max_num_queued=10_000) as engine, running_server(engine) as server:
        process = await asyncio.create_subprocess_exec(
            tool,
            "run",
            f"{server.url}/openapi.json",
            f"--exclude-checks={LEFT_OUT}",
            f"--max-examples={examples}",
            f"--seed={seed}",
            "--phases=examples,coverage,fuzzing",
            "--generation-database=none",
            cwd=tool.parent,  # it keeps a folder where it runs
        )
        return await process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return asyncio.run(run(arguments.tool.absolute(), examples=arguments.examples, seed=arguments.seed))


if __name__ == "__main__":
    raise SystemExit(main())
