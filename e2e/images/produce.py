"""Build what is missing, one image after the other. Wiring: decisions are in `inputs` and `commands`."""

from __future__ import annotations

import time
from collections.abc import Iterable

from e2e.images.archive import Record
from e2e.images.commands import BuildRequest
from e2e.images.targets import STABLE_TAG, BuiltImage, Target, image_name, parse_target
from e2e.images.workshop import ROOT, Workshop, open_workshop
from e2e.progress import Say


def build(targets: Iterable[str], *, registry: str | None = None, say: Say | None = None) -> dict[str, BuiltImage]:
    """Build the targets whose inputs changed, and push all of them where a registry is given.

    Keys are the names asked for; references then name the registry. Raises `ImageError`.
    """
    wanted = [parse_target(name) for name in targets]
    with open_workshop(say or timed_say()) as workshop:
        built = {str(target): provide(workshop, target, needed_in_storage=registry is not None) for target in wanted}
        if registry is None:
            return built
        return {str(target): push(workshop, target, built[target], registry) for target in wanted}


def provide(workshop: Workshop, target: Target, needed_in_storage: bool) -> BuiltImage:
    """The archive of this tag, built where it is missing, or where the image itself is needed and gone."""
    tag, shelf = workshop.tag(target), workshop.shelf(target)
    ref, stable = image_name(target, tag), image_name(target, STABLE_TAG)
    record = shelf.find(tag)
    if record is None or (needed_in_storage and not workshop.builder.has(ref)):
        build_image(workshop, target, (ref, stable))
        if workshop.tag(target) != tag:
            workshop.say(f"{target}: files changed meanwhile, building again")
            workshop.builder.forget([ref])
            return provide(workshop, target, needed_in_storage)
        record = archive_image(workshop, target, tag, (ref, stable))
    else:
        shelf.touch(tag)
        workshop.say(f"{target}: unchanged, {ref}")
    return BuiltImage(ref=ref, archive=shelf.archive(tag), digest=record.digest)


def build_image(workshop: Workshop, target: Target, names: tuple[str, ...]) -> None:
    """Into the builder's storage, with a log of its own."""
    workshop.say(f"{target}: building" + (f", {workshop.torch.described}" if target.holds_torch else ""))
    request = BuildRequest(
        root=ROOT, target=target, base=workshop.base, version=workshop.version, torch=workshop.torch, tags=names,
        secrets=workshop.secrets,
    )  # fmt: skip
    workshop.log(target).unlink(missing_ok=True)
    workshop.builder.build(request, workshop.log(target), workshop.say)


def archive_image(workshop: Workshop, target: Target, tag: str, names: tuple[str, ...]) -> Record:
    """From the builder's storage into the cache, where only the newest stay."""
    shelf = workshop.shelf(target)
    shelf.prepare()
    unfinished = shelf.folder / "unfinished.tar"
    record = shelf.keep(unfinished, tag, workshop.builder.save(names, unfinished))
    workshop.builder.forget([image_name(target, old) for old in shelf.drop_old(tag)])
    workshop.say(f"{target}: {names[0]}, {record.archive_bytes / 1e6:.0f} MB uncompressed")
    return record


def push(workshop: Workshop, target: Target, image: BuiltImage, registry: str) -> BuiltImage:
    """Under the same tag, below the registry."""
    remote = image_name(target, image.ref.rpartition(":")[2], registry)
    workshop.say(f"{target}: pushing {remote}")
    workshop.builder.push(image.ref, remote, workshop.log(target), workshop.say)
    return BuiltImage(ref=remote, archive=image.archive, digest=image.digest)


def timed_say() -> Say:
    """Lines with the seconds since now, in the form of `e2e.progress.step`."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"    [{time.monotonic() - began:5.1f} s] {line}", flush=True)

    return say
