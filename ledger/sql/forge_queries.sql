-- Named statements of ledger/forges.py. One block each: "-- name: NAME", then the statement.

-- name: settle_effect
SELECT ledger.settle_effect(%(step)s, %(fence)s, %(action)s, %(outcome)s, %(told)s)

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
SELECT greatest(extract(epoch FROM not_before - ledger.now()), 0)::double precision AS seconds, closed_because
FROM ledger.forges WHERE forge = %(forge)s AND not_before > ledger.now()
