"""The PageFleet serving engine.

Its public names are resolved on first use, so that importing `pagefleet_engine.contract` loads no torch.
"""
