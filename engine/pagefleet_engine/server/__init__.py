"""The engine's HTTP side: an OpenAI-compatible API over the `Engine` Protocol of `pagefleet_engine.api`.

Everything a client sends is checked here, before the engine sees it. No torch and no scheduling.
"""
