"""The scheduler decides: models, the decide step, strategies, admission, dispatch and the recovery sweep.

It may use the ledger and the policy and talk to models. It never touches a workspace, a sandbox or an effect: it meets
the runners in the ledger only.
"""
