"""The models: a configuration and a decoder built from the shared layers."""
