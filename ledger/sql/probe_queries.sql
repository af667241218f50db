-- Named statements of ledger/probes.py. One block each: "-- name: NAME", then the statement.

-- name: record_probe
SELECT ledger.record_probe(
    %(subject)s, %(image)s, %(backend)s, %(runtime)s, %(host)s, %(checks)s, %(took_ms)s,
    make_interval(secs => %(lasts)s), make_interval(secs => %(lasts_failed)s)) AS id

-- name: find_valid_probe
-- The last word on a subject, if it still counts. A good one has to last a while: what it allows is yet to start.
SELECT id, ok, failed FROM (
    SELECT id, ok, failed, expires_at FROM ledger.probes WHERE subject = %(subject)s ORDER BY id DESC LIMIT 1
) last WHERE expires_at > ledger.now() + CASE WHEN ok THEN make_interval(secs => %(spare)s) ELSE interval '0' END

-- name: latest_probes
-- The last probe of each subject, the newest first.
SELECT * FROM (
    SELECT DISTINCT ON (subject) id, image, backend, runtime, host, ok, failed, checks, took_ms, probed_at, expires_at,
           expires_at <= ledger.now() AS expired
    FROM ledger.probes WHERE %(image)s::text IS NULL OR image = %(image)s ORDER BY subject, id DESC
) last ORDER BY id DESC LIMIT %(amount)s

-- name: find_probe
SELECT id, image, backend, runtime, host, ok, failed, checks, took_ms, probed_at, expires_at,
       expires_at <= ledger.now() AS expired
FROM ledger.probes WHERE id = %(id)s

-- name: end_probing_in_silence
-- Longer than any probe takes: who was stopped in the middle, or whose host is gone, must not keep others from probing.
SELECT set_config('idle_session_timeout', '180s', false)

-- name: try_probing
SELECT pg_try_advisory_lock(4712, hashtext(%(subject)s)) AS mine

-- name: register_sandbox
SELECT ledger.register_sandbox(
    %(step)s, %(fence)s, %(name)s, %(host)s, %(image)s, %(purpose)s, %(probe)s,
    make_interval(secs => %(armed)s::double precision))

-- name: bind_sandbox
SELECT ledger.bind_sandbox(%(step)s, %(fence)s, %(name)s) AS bound

-- name: renew_armed
SELECT name FROM ledger.renew_armed(%(names)s, make_interval(secs => %(duration)s)) AS name
