"""The control API: its own port, its own credential. What it says is defined in `pagefleet_engine.contract.control`."""
