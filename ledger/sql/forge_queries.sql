-- Named statements of ledger/forges.py. One block each: "-- name: NAME", then the statement.

-- name: settle_effect
SELECT ledger.settle_effect(%(step)s, %(fence)s, %(action)s, %(outcome)s, %(told)s)

-- name: known_effect
SELECT * FROM ledger.known_effect(%(step)s, %(fence)s, %(action)s)

-- name: check_lease
SELECT 1 FROM ledger.held_step(%(step)s, %(fence)s)

-- name: postpone_step
SELECT ledger.postpone_step(%(step)s, %(fence)s, make_interval(secs => %(delay)s), %(why)s)

-- name: take_turn
SELECT ledger.take_turn(
    %(step)s, %(fence)s, %(forge)s, %(holder)s, make_interval(secs => %(gap)s), %(per_minute)s, %(per_hour)s,
    %(use_it)s) AS wait_seconds

-- name: close_forge
SELECT ledger.close_forge(%(forge)s, make_interval(secs => %(seconds)s), %(why)s)

-- name: forge_closed
SELECT ledger.closed_for(%(forge)s) AS seconds
