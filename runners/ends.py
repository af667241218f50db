"""What all work of a step has in common: first the death of what earlier attempts left, and typed ends.

A failure that will come back the same way ends the job with the reason it belongs to. What may pass is raised, and the
worker gives the step back; see `runners.runner.exhausted_reason` for what becomes of the last attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from ledger.errors import BadInput, IsolationUnverified, PatchyardError, Uncertain
from ledger.objects import ObjectMissing
from ledger.records.budget import Amounts
from ledger.records.job import Reason
from ledger.records.step import Claim, Completion, Event
from runners.armed import arm_next
from runners.disk import full_disk_told
from runners.runner import Runner
from runners.sandbox.backend import ImageUnavailable, NoNetwork
from runners.takeover import take_over
from runners.workspace.errors import (
    CommitMissing,
    ObjectUnreadable,
    PackRefused,
    RepositoryMissing,
    SourceRefused,
    WrongDigest,
)

Work = Callable[[Claim, Runner], Completion]


def step_work(work: Work) -> Work:
    """Wraps the work of a step: takes over from earlier attempts, and turns what can't be mended into an end."""

    @wraps(work)
    def whole(claim: Claim, runner: Runner) -> Completion:
        take_over(claim, runner)
        if claim.cancelling:
            if runner.armoury is not None:
                runner.armoury.forget(claim.job_id)
            return ended(claim.end_with, "nothing of the job is left running")
        try:
            # The job's mirror stays where it is until the step is done, however little room there is.
            with full_disk_told("the disk"), runner.mirrors.in_use(claim.job.source):
                completion = work(claim, runner)
                arm_next(claim, runner, completion)
                return completion
        except ObjectUnreadable:
            runner.mirrors.discard(claim.job.source)
            raise
        except IsolationUnverified as error:
            return _failed("isolation_unverified", error)
        except NoNetwork as error:
            return _failed("environment_failed", error)
        except ImageUnavailable as error:
            return _failed("image_unavailable", error)
        except (RepositoryMissing, CommitMissing, WrongDigest, SourceRefused, PackRefused, ObjectMissing) as error:
            return _failed("repo_unavailable", error)
        except BadInput as error:
            return _failed("environment_failed", error)
        except Uncertain as error:
            return _failed("effect_uncertain", error)

    return whole


def _failed(reason: Reason, error: PatchyardError) -> Completion:
    return ended(reason, error.message)


def ended(reason: Reason, why: str, spent: Amounts | None = None) -> Completion:
    """The completion that ends the job for `reason`."""
    body = {"reason": reason, "why": why}
    return Completion(result=body, end=reason, spent=spent or Amounts(), events=(Event(kind="step_ended", body=body),))
