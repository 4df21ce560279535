"""Events: one for each thing that happened, by names of their own."""

from dataclasses import replace

from pagefleet_operator.events import EventNote, build_event
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.testing import KEY, START

NOTE = EventNote(kind="Normal", reason="RequestsSwapped", action="Tune", note="the cap goes down", subject="a")


def name(note):
    return build_event(note, Owner(key=KEY, uid="uid"), "test", START)["metadata"]["name"]


def test_equal_sentences_about_two_pods_are_two_events_and_a_repeated_write_is_one():
    assert name(NOTE) != name(replace(NOTE, subject="b"))
    assert name(NOTE) == name(replace(NOTE))
