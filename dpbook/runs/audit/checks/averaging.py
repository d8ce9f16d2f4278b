"""Checks of gradient averaging: one average per backward, overlapped with it; replicas that start and stay equal."""

import math
import statistics
from typing import Any

from dpbook.core import listed, plural
from dpbook.runs.audit.findings import CheckResult, check, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_deviating_rank, first_difference
from dpbook.runs.watching.journal import Event


@check("start", "replicas start equal", "chapter 01", after=("group",))
def start(run: RunJournals) -> CheckResult | None:
    """Compare the parameters before the first update."""
    first = [update for update in run.updates if update.number == 1]
    if not first:
        return untested("no update was seen")
    compared = fixed = 0
    for update in first:
        names, about = run.shared(update.optimizer), run.optimizers[update.optimizer][0]
        compared += len(names)
        frozen = run.frozen(update)
        fixed += len(frozen[0])
        differs = first_difference([step["before"] for step in update.steps], names)
        if differs:
            tensor, rank, number = differs
            reason = "give all ranks the same (the same seed, a broadcast, or a wrapper)"
            if about["wrappers"] and tensor not in about["unwrapped"]:
                reason = f"{about['wrappers'][0]} made them equal, unless it has init_sync=False: does the script "
                reason += "change them before it steps?"
            message = f"before the first update, {number} of {plural(len(names), 'tensor')} differ: {reason}"
            return CheckResult("FAIL", message, rank, tensor, 0)
        differs = first_difference(frozen, list(frozen[0]))
        if differs:
            tensor, rank, number = differs
            message = f"of the parameters that are not trained, {number} of {len(frozen[0])} differ: the ranks train "
            message += "different functions, unless the model does not use them; a wrapper or a broadcast makes them "
            message += "equal"
            return CheckResult("WARN", message, rank, tensor, 0)
    untrained = f"; {fixed} more that are not trained" if fixed else ""
    return passed(f"{plural(compared, 'tensor')}, bit for bit{untrained}") if compared else None


@check(
    "gradients", "all ranks step with the same gradient", "chapter 01",
    after=("group", "sync", "unused", "scaled", "scaler"),
)  # fmt: skip
def gradients(run: RunJournals) -> CheckResult | None:
    """Compare the gradients at each step, after they have been averaged."""
    compared = 0
    for update in run.updates:
        names = run.shared(update.optimizer)
        compared += bool(names)
        differs = first_difference([step["gradients"] for step in update.steps], names)
        if differs and run.rejoined[update.optimizer]:
            return _of_rejoined(*run.rejoined[update.optimizer][0], names)
        if differs and update.unseen:
            return untested(update.unseen)
        if differs:
            tensor, rank, number = differs
            reason, place = _reason_not_averaged(run, update, rank, tensor)
            message = f"{number} of {plural(len(names), 'gradient')} differ; {reason}"
            return CheckResult("FAIL", message, rank, tensor, update.number, place)
    return passed(plural(compared, "update")) if compared else None


OWN_STEPS = (
    "each rank steps with its own gradient, and the script makes the parameters equal afterwards; whether it takes "
    "their mean, as local SGD does, is not seen"
)


def _of_rejoined(update: Update, later: Update, names: list[str]) -> CheckResult:
    """Return the result for a script whose ranks step on their own, and have equal parameters before a ``later`` step.

    It is a failure if these are the parameters that one of the ranks had.
    """
    tensor, _, _ = first_difference([after["parameters"] for after in update.stepped], names) or ("", 0, 0)
    after = [each["parameters"][tensor] for each in update.stepped]
    now = later.steps[0]["before"][tensor]
    if now not in after:
        return untested(OWN_STEPS)
    rank = after.index(now)
    message = (
        f"each rank steps with its own gradient, and the parameters of rank {rank} replace the others' afterwards: "
    )
    message += "the other ranks' work is lost"
    return CheckResult("FAIL", message, rank, None, update.number, update.steps[rank]["place"])


def _reason_not_averaged(run: RunJournals, update: Update, rank: int, tensor: str) -> tuple[str, list[Any] | None]:
    """Return the reason why ``tensor`` was not averaged, as far as it is known, and the line of the script."""
    about, place = run.optimizers[update.optimizer][rank], update.steps[rank]["place"]
    clips = update.of("clip")
    counts = [len(of_rank) for of_rank in clips]
    if len(set(counts)) > 1:
        return f"the ranks clip {' '.join(map(str, counts))} times", max(clips, key=len)[0]["place"]
    limits = [[event["most"] for event in of_rank] for of_rank in clips]
    other = first_deviating_rank(limits)
    if other is not None and all(each is not None for of_rank in limits for each in of_rank):
        nth = next(nth for nth, norms in enumerate(zip(*limits, strict=True)) if len(set(norms)) > 1)
        return f"the ranks clip to {' '.join(f'{of_rank[nth]:g}' for of_rank in limits)}", clips[other][nth]["place"]
    if not about["wrappers"]:
        if any(event["name"] != "barrier" for events in run.of("collective") for event in events):
            return "no wrapper averages them, and the script's own collectives do not make them equal", place
        seen = plural(max(update.number for update in run.updates), "update")
        return f"no wrapper averages them, and nothing was sent in {seen} (local SGD? raise --updates)", place
    forwards = update.of("forward")[rank]
    through = [event for event in forwards if event.get("module") in about.get("roots", ())] or forwards
    if not any(event["wrapped"] for event in through):
        reason = f"no forward goes through the wrapper {about['wrappers'][0]}: call the wrapper, not its module"
        return reason, through[0]["place"] if through else place
    if tensor in about["unwrapped"]:
        return f"{tensor} is in no wrapper", place
    return f"{about['wrappers'][0]} should average them", place


@check("rates", "all ranks have the same learning rate", "chapter 04")
def rates(run: RunJournals) -> CheckResult | None:
    """Compare the learning rates of all parameter groups at each step."""
    for update in run.updates:
        rank = first_deviating_rank([step["rates"] for step in update.steps])
        if rank is not None:
            groups = list(zip(*(step["rates"] for step in update.steps), strict=False))
            group = next((number for number, of_ranks in enumerate(groups) if len(set(of_ranks)) > 1), 0)
            message = "; ".join(f"rank {each}: {rate:.4g}" for each, rate in enumerate(groups[group]))
            message += f" (parameter group {group})" if len(groups) > 1 else ""
            return CheckResult("FAIL", message, rank, None, update.number, update.steps[rank]["place"])
    return passed(plural(len(run.updates), "update")) if run.updates else None


@check(
    "replicas", "replicas stay equal", "chapter 01",
    after=("group", "start", "sync", "gradients", "rates", "clip", "unused", "scaler"),
)  # fmt: skip
def replicas(run: RunJournals) -> CheckResult | None:
    """Compare the parameters after each update."""
    compared = 0
    for update in run.updates:
        if not update.stepped:
            continue
        names = run.shared(update.optimizer)
        differs = first_difference([after["parameters"] for after in update.stepped], names)
        if differs and run.rejoined[update.optimizer]:
            continue
        compared += bool(names)
        if differs:
            tensor, rank, number = differs
            message = f"after update {update.number}, {number} of {plural(len(names), 'tensor')} differ"
            return CheckResult("FAIL", message, rank, tensor, update.number, update.steps[rank]["place"])
    if again := [update.number for pairs in run.rejoined.values() for update, _ in pairs]:
        return passed(f"made equal again by the script after update {listed(again, 5)}, bit for bit")
    return passed(f"{plural(compared, 'update')}, bit for bit") if compared else None


@check("moves", "training changes the parameters", "chapter 01", after=("unused", "finite"))
def moves(run: RunJournals) -> CheckResult | None:
    """Compare the parameters after the last update with those before the first, on rank 0."""
    changed = compared = 0
    for optimizer in run.optimizers:
        updates = [update for update in run.updates if update.optimizer == optimizer and update.stepped]
        before = updates[0].steps[0]["before"] if updates else None
        if before is None:
            continue
        after = updates[-1].stepped[0]["parameters"]
        differing = sum(after.get(name) != hashed for name, hashed in before.items())
        if not differing:
            message = f"none of {plural(len(before), 'tensor')} has changed in {plural(len(updates), 'update')}: "
            message += "is every gradient zero, or the rate?"
            return CheckResult("WARN", message, None, None, 1, updates[0].steps[0]["place"])
        changed, compared = changed + differing, compared + len(before)
    return passed(f"{changed} of {plural(compared, 'tensor')}") if compared else None


@check("buffers", "buffers are the same on all ranks", "chapter 02")
def buffers(run: RunJournals) -> CheckResult | None:
    """Compare the model's buffers, such as running statistics, at the beginning of each forward."""
    compared = 0
    for update in run.updates:
        for forwards in run.forwards_in_step(update):
            names = list(forwards[0]["buffers"])
            compared += bool(names)
            differs = first_difference([forward["buffers"] for forward in forwards], names)
            if differs:
                tensor, rank, number = differs
                reason = "nothing broadcasts them, so each rank keeps its own, and a checkpoint has those of the rank "
                reason += "that writes it"
                if any(event["sync"] is False for events in run.of("forward") for event in events):
                    reason = "after a forward in no_sync the wrapper broadcasts no buffers, so each rank keeps its own"
                message = f"{plural(number, 'buffer')} of {len(names)} differ as a forward begins; {reason}"
                return CheckResult("WARN", message, rank, tensor, update.number, forwards[rank]["place"])
    return passed(plural(compared, "forward")) if compared else None


@check("group", "the ranks form one process group", "chapter 11")
def group(run: RunJournals) -> CheckResult | None:
    """Compare the size of each rank's process group at its first update with the number of ranks."""
    for about in run.optimizers.values():
        for rank, event in enumerate(about):
            if event["group"] != run.world:
                has = f"a group of {event['group']}" if event["group"] else "no process group"
                message = f"{run.world} ranks were started and this one has {has}: it trains alone (call "
                return CheckResult("FAIL", f"{message}init_process_group with the environment's values)", rank, None, 1)
    return passed(f"{plural(run.world, 'rank')}") if run.optimizers else None


@check("twice", "every gradient is computed once per backward", "chapter 11")
def twice(run: RunJournals) -> CheckResult | None:
    """Fail if torch's DDP raised because a parameter had two gradients in one backward; otherwise not applicable."""
    if "mark a variable ready only once" not in run.ended:
        return None
    last = max((events[-1] for events in run.of("backward") if events), key=lambda event: event["at"], default=None)
    message = "a parameter is used in two re-entrant checkpoints, or in two backwards: "
    message += "checkpoint(…, use_reentrant=False), or DDP(…, static_graph=True)"
    return CheckResult("FAIL", message, place=last["place"] if last else None)


LATE_SHARE = 0.9
"""Share of backward after which a first all-reduce can no longer be hidden behind it."""


@check("overlap", "all-reduces begin while backward runs", "chapter 12")
def overlap(run: RunJournals) -> CheckResult | None:
    """Count the all-reduces of torch's DDP in an update of a compiled model, and check when the first begins."""
    compiled = any("OptimizedModule" in event["wrappers"] for about in run.optimizers.values() for event in about)
    sent = [event["sent"] for event in run.of("stepped")[0] if event.get("sent")] if run.ranks else []
    if not compiled or not sent:
        return None
    calls, begun = sent[-1]["all_reduces"], statistics.median(each["begun"] for each in sent)
    message = f"{plural(calls, 'all-reduce')} an update, the first after {begun:.0%} of backward"
    if calls > 1 and begun > LATE_SHARE:
        message += ": the compiled model gives all gradients at its end, so no all-reduce hides"
        return CheckResult("WARN", message)
    return passed(message)


@check("sync", "the last micro-batch is averaged over the ranks", "chapter 10", after=("unused",))
def sync(run: RunJournals) -> CheckResult | None:
    """Check the `no_sync` flag of the wrapper at the forward before the last backward of each update."""
    judged, past_wrapper = 0, False
    for update in run.updates:
        forwards, backwards = update.of("forward"), update.of("backward")
        if not all(forwards) or not all(backwards) or forwards[0][-1]["sync"] is None:
            continue
        if all(of_rank[-1]["wrapped"] for of_rank in forwards):
            judged += 1
        else:
            past_wrapper = True
        differs = first_difference([step["gradients"] for step in update.steps], run.shared(update.optimizer))
        unsynced = [rank for rank, of_rank in enumerate(forwards) if of_rank[-1]["sync"] is False]
        if differs and unsynced:
            rank = unsynced[0]
            late = "the forward is inside no_sync, and it decides whether backward averages"
            message = late if backwards[rank][-1]["sync"] else "forward and backward are inside no_sync"
            return CheckResult("FAIL", message, rank, differs[0], update.number, forwards[rank][-1]["place"])
    if judged:
        flags = [event["sync"] for event in run.of("forward")[0] if event["sync"] is not None and event["wrapped"]]
        synced = f"{sum(flags)} of {plural(len(flags), 'forward')} averaged"
        return passed(f"{synced}, {plural(len(run.updates), 'update')}")
    return untested("the forward does not go through the wrapper") if past_wrapper else None


@check("clip", "clipping sees the averaged gradient", "chapter 10", after=("sync", "unused", "gradients"))
def clip(run: RunJournals) -> CheckResult | None:
    """Compare the norms over ranks: the norm of an averaged gradient is the same on all of them."""
    judged = 0
    for update in run.updates:
        for clips in update.in_step("clip"):
            norms = [each["norm"] for each in clips]
            if any(norm is None or not math.isfinite(norm) for norm in norms):
                continue
            judged += 1
            if run.rejoined[update.optimizer]:
                return untested(OWN_STEPS)
            if max(norms) - min(norms) > 1e-5 * max(norms) and run.shared(update.optimizer):
                message = f"norms {', '.join(f'{norm:.4g}' for norm in norms)}: each rank clips its own gradient"
                rank = first_deviating_rank([round(norm, 9) for norm in norms]) or 0
                return CheckResult("FAIL", message, rank, None, update.number, clips[rank]["place"])
    return passed(f"{plural(judged, 'norm')}, the same on all ranks") if judged else None


@check("scaled", "clipping sees the gradient without the scaler's factor", "chapter 11")
def scaled(run: RunJournals) -> CheckResult | None:
    """Check that `GradScaler.unscale_` is called before clipping."""
    clips = [(rank, event) for rank, events in enumerate(run.of("clip")) for event in events]
    if not clips or not any(run.of("scaler")):
        return None
    for rank, event in clips:
        if event["scaled"]:
            message = "the gradients are clipped while they are still multiplied by the scaler: "
            message += "call scaler.unscale_ before"
            return CheckResult("FAIL", message, rank, None, None, event["place"])
    return passed(plural(len(clips), "call"))


@check("scaler", "all ranks scale alike and skip the same steps", "chapter 11", after=("clip", "sync"))
def scaler(run: RunJournals) -> CheckResult | None:
    """Compare the gradient scaler's factor over ranks after each of its updates."""
    updated = run.of("scaler")
    if not all(updated):
        return None
    for number, events in enumerate(zip(*updated, strict=False), 1):
        scales = [event["scale"] for event in events]
        rank = first_deviating_rank(scales)
        if rank is not None:
            message = f"after its update {number} the factor is {', '.join(f'{scale:g}' for scale in scales)}"
            return CheckResult("FAIL", message, rank, None, number, events[rank]["place"])
    return passed(f"{plural(len(updated[0]), 'update')}, factor {updated[0][-1]['scale']:g}")


@check("unused", "every parameter that is trained gets a gradient on every rank", "chapter 08")
def unused(run: RunJournals) -> CheckResult | None:
    """Check for parameters without a gradient at a step.

    They are a failure if the ranks differ, or if torch's DDP raised because of them; otherwise they are a warning.
    """
    for update in run.updates:
        shared = run.shared(update.optimizer)
        missing = [[name for name in step["missing"] if name in shared] for step in update.steps]
        rank = first_deviating_rank(missing)
        if rank is not None:
            rank = rank if missing[rank] else next(r for r, names in enumerate(missing) if names)
            return _without(missing[rank], rank, update.steps[rank])
    if "finished reduction in the prior iteration" in run.ended or "UnusedParameters" in run.ended:
        for rank, steps in enumerate(run.of("step")):  # other ranks may have been stopped before their first step
            for step in steps:
                if step["missing"]:
                    return _without(step["missing"], rank, step)
    by_optimizer: dict[int, set[str]] = {}  # parameters that no backward of any rank gave a gradient
    for update in run.updates:
        for step in update.steps:
            without = set(step["missing"]) - set(step["removed"])
            by_optimizer[update.optimizer] = by_optimizer.get(update.optimizer, without) & without
    if never := sorted(set().union(*by_optimizer.values())):
        message = f"no rank has a gradient for {listed(never, 3)}: it is never trained"
        return CheckResult("WARN", message, None, never[0])
    return passed(plural(len(run.updates), "update")) if run.updates else untested("no update was seen")


def _without(names: list[str], rank: int, step: Event) -> CheckResult:
    message = f"no gradient for {listed(names, 3)}: freeze it, use it, or wrap with find_unused_parameters"
    return CheckResult("FAIL", message, rank, names[0], step["update"], step["place"])
