"""When one route leaves the engine's KV precision, and when it comes back.

`decide.decide` is the whole of it: counted outcomes in, a wanted precision and control share out. Nothing here touches
an engine; the change that it asks for holds for new requests only. docs/precision-remedy.md has the statistics.
"""
