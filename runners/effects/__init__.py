"""Effects on the outside world: a branch pushed, a pull request opened, a comment written. Each at most once.

Every effect can be looked for before it is made (`probe`), so that after a failure of unknown outcome the world is
asked before it is touched again. Only the publish worker imports this; it is the one process that sees credentials.
"""
