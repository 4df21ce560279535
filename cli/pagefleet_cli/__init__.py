"""The `pagefleet` command for people."""
