"""Load on a service from inside the cluster, bounded in time and clients, and what became of every request."""
