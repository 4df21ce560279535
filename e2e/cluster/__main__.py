"""The local cluster from the command line: up, down, status, doctor, tools, env."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

from e2e.cluster import api
from e2e.cluster.doctor import judge
from e2e.cluster.facts import gather_facts


def up(_: argparse.Namespace) -> int:
    began = time.monotonic()
    cluster = api.up()
    print(f"the local cluster runs ({time.monotonic() - began:.1f} s); kubeconfig: {cluster.kubeconfig}")
    print('to use it from this shell: eval "$(make -s cluster-env)"')
    return 0


def down(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    ran = api.down(purge=arguments.purge)
    print(f"the local cluster is stopped ({time.monotonic() - began:.1f} s)" if ran else "no local cluster ran")
    return 0


def status(_: argparse.Namespace) -> int:
    """Exit code 3, as service scripts have it, when nothing runs."""
    found = api.read_status()
    if found is None:
        print("no local cluster runs; start one with: make cluster-up")
        return 3
    layout = found.cluster.layout
    print(f"the local cluster runs, its API server at https://127.0.0.1:{found.cluster.record.api_port}")
    print(f"kubeconfig  {found.cluster.kubeconfig}")
    print(f"programs    {found.cluster.programs}")
    print(f"logs        {layout.logs}")
    for node in layout.nodes:
        print(f"{node.name:11} {'Ready' if node.name in found.ready_nodes else 'not ready'}")
    print(f"memory      {found.memory_bytes / 1e6:.0f} MB without pods")
    return 0


def doctor(_: argparse.Namespace) -> int:
    findings = judge(gather_facts())
    for finding in findings:
        print(finding.line)
    return int(any(not finding.ok and not finding.solved_by_tool for finding in findings))


def tools(_: argparse.Namespace) -> int:
    print(f"programs: {api.ensure_tools().folder}")
    return 0


def env(_: argparse.Namespace) -> int:
    cluster = api.connect()
    print(f"export KUBECONFIG='{cluster.kubeconfig}'")
    print(f"export PATH='{cluster.programs}':\"$PATH\"")
    return 0


COMMANDS: Mapping[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "up": (up, "start the cluster, or find that it runs"),
    "down": (down, "stop it and remove what it made; loaded images stay for the next start"),
    "status": (status, "say whether it runs, and where things are"),
    "doctor": (doctor, "say what this machine lacks, and how to get it"),
    "tools": (tools, "build the programs, without starting anything"),
    "env": (env, 'print shell lines for eval "$(...)"'),
}


def main(argv: list[str]) -> int:
    """Run one command. Errors that a person can act on come as one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if name == "down":
            command.add_argument("--purge", action="store_true", help="remove loaded images and logs too")
    arguments = parser.parse_args(argv)
    run_command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run_command(arguments)
    except api.ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; make cluster-down stops what was started", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
