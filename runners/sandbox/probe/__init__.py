"""Probes: evidence that a sandbox is what it is said to be, before anybody's code runs in one.

`program` looks around inside and tries what must fail, `identity`, `places` and `surroundings` judge what it saw,
`outside` sets beside it what the backend has on record and what the machine's kernel says, `force` tries the bounds by
force, `prober` does all of it for one image, and `subject` says what the evidence is about. The judges are pure: what
was observed goes in, checks come out, and what was not observed has failed.
"""

from runners.sandbox.probe.prober import Errand, ProbeStopped, probe
from runners.sandbox.probe.subject import boot_id, subject_of

__all__ = ["Errand", "ProbeStopped", "boot_id", "probe", "subject_of"]
