"""Runners act: sandboxes, workspaces as trees, tools, the verifier, effects.

They may use the ledger and the policy, an engine and git. They never decide what comes next for an agent, never see a
model's key, and never run anything of an untrusted repository outside a sandbox.
"""
