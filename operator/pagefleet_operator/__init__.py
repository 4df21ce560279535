"""The PageFleet control plane."""
