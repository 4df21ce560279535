"""`python -m e2e.images build`: the command line of the image builds."""

from __future__ import annotations

import argparse
import sys

from e2e.images.produce import build
from e2e.images.targets import ImageError, Target
from e2e.progress import step


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 with one message where an image cannot be built."""
    options = parse(arguments)
    try:
        with step("Build the container images") as say:
            images = build(options.target or [str(target) for target in Target], registry=options.registry, say=say)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for image in images.values():
        print(f"{image.ref}  {image.digest}  {image.archive}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__)
    build_command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "build",
        help="build the images whose inputs changed",
        description="Environment: ENGINE=buildah|docker|podman, BASE=an image to start from, PIP_FIND_LINKS=wheels.",
    )
    build_command.add_argument("--target", action="append", choices=[*map(str, Target)], help="default: all of them")
    build_command.add_argument("--registry", help="push there too, for instance registry.example.com/team")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
