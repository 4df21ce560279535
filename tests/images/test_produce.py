"""Which images are built, archived and pushed, with a builder that only keeps count."""

from dataclasses import dataclass, field

import pytest

from e2e.images.inputs import TorchBuild
from e2e.images.produce import provide, push
from e2e.images.targets import Target
from e2e.images.workshop import Workshop


@dataclass
class CountingBuilder:
    """An `ImageBuilder` in memory."""

    images: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def has(self, ref):
        return ref in self.images

    def build(self, request, log, say):
        self.calls.append(f"build {request.target}")
        self.images |= dict.fromkeys(request.tags, f"sha256:{request.tags[0]}")

    def save(self, names, archive):
        archive.write_text(names[0])
        return self.images[names[0]]

    def push(self, ref, remote, log, say):
        self.calls.append(f"push {remote}")

    def forget(self, refs):
        self.calls += [f"forget {ref}" for ref in refs]


def make_workshop(folder, builder, said, torch_digest="1"):
    return Workshop(
        builder=builder, folder=folder, base="base:1", base_digest="b", version="1.2.3", secrets={}, say=said.append,
        torch=TorchBuild(version="2.13.0", wheel=None), torch_digest=torch_digest,
    )  # fmt: skip


@pytest.fixture
def builder():
    return CountingBuilder()


def test_the_second_call_builds_nothing(tmp_path, builder):
    said = []
    first = provide(make_workshop(tmp_path, builder, said), Target.ENGINE, needed_in_storage=False)
    again = provide(make_workshop(tmp_path, builder, said), Target.ENGINE, needed_in_storage=False)
    assert first == again
    assert builder.calls == ["build engine"]
    assert said[-1] == f"engine: unchanged, {first.ref}"
    assert first.archive.read_text() == first.ref


def test_another_build_of_torch_is_another_image(tmp_path, builder):
    first = provide(make_workshop(tmp_path, builder, []), Target.ENGINE, needed_in_storage=False)
    other = provide(make_workshop(tmp_path, builder, [], torch_digest="2"), Target.ENGINE, needed_in_storage=False)
    assert first.ref != other.ref
    assert builder.calls == ["build engine", "build engine"]


def test_old_archives_leave_the_storage_too(tmp_path, builder):
    refs = [
        provide(make_workshop(tmp_path, builder, [], torch_digest=str(n)), Target.ENGINE, needed_in_storage=False).ref
        for n in range(3)
    ]
    assert builder.calls[-1] == f"forget {refs[0]}"


def test_a_push_needs_the_image_itself(tmp_path, builder):
    provide(make_workshop(tmp_path, builder, []), Target.OPERATOR, needed_in_storage=False)
    builder.images.clear()
    workshop = make_workshop(tmp_path, builder, [])
    image = provide(workshop, Target.OPERATOR, needed_in_storage=True)
    pushed = push(workshop, Target.OPERATOR, image, "registry.example.com")
    assert pushed.ref == image.ref.replace("localhost", "registry.example.com")
    assert builder.calls == ["build operator", "build operator", f"push {pushed.ref}"]
