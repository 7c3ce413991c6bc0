"""The slot broker: commands in the scarce slots of exec servers.

Spec: slot broker. Rules stand in this package, effects in `rota.slots.io`.
"""
