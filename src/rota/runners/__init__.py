"""The runner fabric: work on machines that dial out, and that nobody trusts.

Spec: runners. Rules stand in this package, effects in `rota.runners.io`.
"""
