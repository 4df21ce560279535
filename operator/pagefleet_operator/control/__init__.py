"""The control loop: looks at every engine, asks the deciders in `remedies`, and sets the engines to what they want.

The number of replicas, the status and the events are the reconcile's business: it gets a `view.ControlView`.
"""
