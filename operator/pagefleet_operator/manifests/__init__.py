"""Builders of the children: one pure module per kind, from a spec to a manifest."""
