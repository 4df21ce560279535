"""Rollouts as whole sequences for small cases, and as a simulation for many: rest is reached, the bounds hold."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.rollout import Health, Limits, Member, Step, next_step, victim_order

START = datetime(2026, 1, 1, tzinfo=UTC)


def member(name, *, current=True, health=Health.READY, age=0, **fields):
    return Member(name=name, created=START - timedelta(seconds=age), current=current, health=health, **fields)


def old(name, **fields):
    return member(name, current=False, **fields)


@dataclass(frozen=True, kw_only=True)
class Case:
    members: tuple[Member, ...]
    limits: Limits
    want: Step


CASES = {
    "an empty fleet is made at once": Case(members=(), limits=Limits(replicas=3), want=Step(create=3)),
    "a settled fleet needs nothing": Case(
        members=(member("a"), member("b")), limits=Limits(replicas=2, max_surge=1), want=Step()
    ),
    "pods that start are not made twice": Case(
        members=(member("a", health=Health.STARTING),), limits=Limits(replicas=1), want=Step()
    ),
    "a broken pod of the wanted revision stays: the kubelet restarts it": Case(
        members=(member("a", health=Health.BROKEN), member("b")), limits=Limits(replicas=2), want=Step()
    ),
    "a pod that somebody deletes is replaced before it is gone": Case(
        members=(member("a"), member("b", health=Health.BROKEN, leaving=True)),
        limits=Limits(replicas=2),
        want=Step(create=1),
    ),
    "the surplus that goes first is not ready, then the youngest": Case(
        members=(member("a", age=3), member("b", age=1), member("c", age=9, health=Health.STARTING)),
        limits=Limits(replicas=1),
        want=Step(scale_down=("c", "b")),
    ),
    "scaling to zero removes all": Case(
        members=(member("a", age=1), old("b")), limits=Limits(replicas=0), want=Step(scale_down=("b", "a"))
    ),
    "without surge one old pod leaves first": Case(
        members=(old("a", age=2), old("b", age=1)), limits=Limits(replicas=2), want=Step(replace=("b",))
    ),
    "without surge its successor waits until it is gone": Case(
        members=(old("a"), old("b", leaving=True)), limits=Limits(replicas=2), want=Step()
    ),
    "a pod on a dead node does not hold its place for ever": Case(
        members=(old("a"), old("b", leaving=True, overdue=True)), limits=Limits(replicas=2), want=Step(create=1)
    ),
    "the next old pod stays while the new one starts": Case(
        members=(old("a"), member("b", health=Health.STARTING)), limits=Limits(replicas=2), want=Step()
    ),
    "with surge the new pod comes first": Case(
        members=(old("a"),), limits=Limits(replicas=1, max_surge=1, max_unavailable=0), want=Step(create=1)
    ),
    "with surge the old pod leaves when the new one is ready": Case(
        members=(old("a"), member("b")),
        limits=Limits(replicas=1, max_surge=1, max_unavailable=0),
        want=Step(replace=("a",)),
    ),
    "broken old pods are replaced together: the change is probably their cure": Case(
        members=(old("a", health=Health.BROKEN), old("b", health=Health.BROKEN), old("c", health=Health.BROKEN)),
        limits=Limits(replicas=3),
        want=Step(replace=("c", "b", "a")),
    ),
    "old pods that are unready for a moment do not all leave": Case(
        members=(old("a", health=Health.STARTING), old("b", health=Health.STARTING), old("c", health=Health.STARTING)),
        limits=Limits(replicas=3),
        want=Step(replace=("c",)),
    ),
    "a broken new revision stops the rollout": Case(
        members=(old("a"), old("b"), member("c", health=Health.BROKEN)), limits=Limits(replicas=3), want=Step()
    ),
    "zero surge and zero unavailable would never move, so one may go": Case(
        members=(old("a"),), limits=Limits(replicas=1, max_unavailable=0), want=Step(replace=("a",))
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_next_step(case):
    assert next_step(case.members, case.limits) == case.want


def test_victims_leave_in_the_order_of_their_worth():
    fleet = [
        member("ready-old-age", age=9),
        member("ready-young", age=1),
        old("ready-outdated", age=9),
        member("unready", health=Health.STARTING),
        member("unscheduled", health=Health.STARTING, scheduled=False),
    ]
    want = ["unscheduled", "unready", "ready-outdated", "ready-young", "ready-old-age"]
    assert [victim.name for victim in victim_order(fleet)] == want


def test_a_pod_of_which_nobody_knows_the_requests_is_the_last_victim():
    fleet = [member("unknown", in_flight=None), member("busy", in_flight=9, age=9), member("idle", in_flight=0, age=9)]
    assert [victim.name for victim in victim_order(fleet)] == ["idle", "busy", "unknown"]


class Fleet:
    """Pods that do as they are told, one event at a time."""

    def __init__(self, limits):
        self.limits = limits
        self.revision = 0
        self.made = 0
        self.pods = {}  # name -> (revision, Member)

    def members(self):
        return [replace(pod, current=revision == self.revision) for revision, pod in self.pods.values()]

    def step(self):
        members = self.members()
        step = next_step(members, self.limits)
        self.check(members, step)
        for name in (*step.scale_down, *step.replace):
            revision, pod = self.pods[name]
            self.pods[name] = (revision, replace(pod, leaving=True))
        for _ in range(step.create):
            self.made += 1
            name = f"pod-{self.made}"
            created = START + timedelta(seconds=self.made)
            pod = Member(name=name, created=created, current=True, health=Health.STARTING)
            self.pods[name] = (self.revision, pod)
        return step

    def check(self, members, step):
        gone = {*step.scale_down, *step.replace}
        assert len(gone) == len(step.scale_down) + len(step.replace), "a pod leaves once"
        staying = [pod for pod in members if not pod.leaving]
        assert gone <= {pod.name for pod in staying}, "only staying pods leave"
        ready = [pod for pod in staying if pod.health is Health.READY]
        left = [pod for pod in ready if pod.name not in gone]
        assert len(left) >= min(len(ready), self.limits.min_ready), "ready pods stay within the bound"
        if step.create:
            old_leaving = sum(pod.leaving and not pod.current and not pod.overdue for pod in members)
            most = self.limits.replicas + self.limits.max_surge
            assert len(staying) + old_leaving + step.create <= most, "the surge bound holds"
            assert not step.scale_down, "nothing is made while there is too much"

    def finish(self):
        """Every leaving pod is gone, every starting one ready."""
        for name, (revision, pod) in list(self.pods.items()):
            if pod.leaving:
                del self.pods[name]
            else:
                self.pods[name] = (revision, replace(pod, health=Health.READY))

    def rest(self):
        for _ in range(4 * (len(self.pods) + self.limits.replicas) + 4):
            if self.step() == Step() and all(
                pod.health is Health.READY and not pod.leaving for _, pod in self.pods.values()
            ):
                return
            self.finish()
        pytest.fail("the fleet does not come to rest")


def test_a_rollout_without_surge_replaces_one_by_one():
    fleet = Fleet(Limits(replicas=3))
    fleet.rest()
    fleet.revision = 1
    steps = []
    for _ in range(9):
        steps.append(fleet.step())
        fleet.finish()
    leave = [Step(replace=(name,)) for name in ("pod-3", "pod-2", "pod-1")]
    come, wait = Step(create=1), Step()
    assert [step for step in steps if step != wait] == [leave[0], come, leave[1], come, leave[2], come]


limits = st.builds(
    Limits,
    replicas=st.integers(0, 5),
    max_surge=st.integers(0, 3),
    max_unavailable=st.integers(0, 6),
)
events = st.lists(
    st.tuples(
        st.sampled_from(
            ["step", "ready", "break", "unready", "lose", "gone", "overdue", "revise", "scale", "unschedule"]
        ),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(limits, events)
def test_any_history_keeps_the_bounds_and_comes_to_rest(start, history):
    fleet = Fleet(start)
    changes = {
        "ready": {"health": Health.READY},
        "break": {"health": Health.BROKEN},
        "unready": {"health": Health.STARTING},
        "lose": {"leaving": True},
        "unschedule": {"scheduled": False, "health": Health.BROKEN},
    }
    for event, number in history:
        names = sorted(fleet.pods)
        if event == "step":
            fleet.step()
        elif event == "revise":
            fleet.revision = number % 3
        elif event == "scale":
            fleet.limits = replace(fleet.limits, replicas=number % 6)
        elif names:
            name = names[number % len(names)]
            revision, pod = fleet.pods[name]
            if event == "gone" and pod.leaving:
                del fleet.pods[name]
            elif event == "overdue":
                fleet.pods[name] = (revision, replace(pod, overdue=pod.leaving))
            elif event in changes:
                fleet.pods[name] = (revision, replace(pod, **changes[event]))
    fleet.rest()
    assert next_step(fleet.members(), fleet.limits) == Step()
    assert len(fleet.pods) == fleet.limits.replicas
    assert all(pod.current for pod in fleet.members())
