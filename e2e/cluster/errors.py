"""What can go wrong with the local cluster.

ClusterError
├── ToolBuildError     a program could not be built, or a built one was changed afterwards
├── MissingError       the machine lacks something that the cluster needs
└── StartError         the cluster was started but did not come up
"""

from __future__ import annotations


class ClusterError(RuntimeError):
    """The message is for the person who asked for a cluster: what happened and what to do."""


class ToolBuildError(ClusterError):
    """A program could not be built, or a built one was changed afterwards."""


class MissingError(ClusterError):
    """The machine lacks something that the cluster needs."""


class StartError(ClusterError):
    """The cluster was started but did not come up."""
