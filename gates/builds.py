"""Gate `builds`: was this very build compared with the branch that it goes into, and found not to be slower?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from specgate.contract import Kind, Rule, RunView, State, Verdict
from specgate.contract.references import Builds, ComparedBuild, Revision
from specgate.gates.select import verdict

OF_JUDGING = ("config_sha256", "plugin:gate:", "plugin:report:")
"""Keys of a fingerprint, or how they begin, that say nothing of the build that was measured."""
STATES: Mapping[str | None, tuple[State, str]] = {
    "SAME": (State.PASS, "same"),
    "FASTER": (State.IMPROVED, "faster"),
    "SLOWER": (State.FAIL, "slower"),
    "CANNOT TELL": (State.INCONCLUSIVE, "cannot_tell"),
    None: (State.INVALID, "no_word"),
}
"""Word of a comparison → the state and the reason code of a verdict."""


class Compared:
    """`base`: the git revision that the old build must have been made from, or the commit where the branch left it.

    Every micro scenario of the run that the rule selects must have been compared. Whole requests are not: they come
    after micro runs of the same policy, and `specgate ab` compares steps.

    A comparison counts if its new build is what this run measures: the same source tree, packages, plug-ins, weights
    and device. The newest one decides; but a loss that was found is not measured away by a later comparison of the same
    build. Where there is none, the run is NOT_JUDGED, and the verdict has the command that makes one.
    """

    name = "builds"
    needs = "the software that was measured"
    params: Mapping[str, type] = {"base": str}

    def judges(self, rule: Rule) -> tuple[Kind, ...]:
        """Return no kind."""
        return ()

    def base(self, rule: Rule) -> str:
        """Return the revision that the build has to be compared with."""
        return str(rule.params["base"])

    def judge(self, rule: Rule, run: RunView) -> Iterator[Verdict]:
        for name in scenarios_of(rule, run):
            yield judged(rule, run, name, run.builds or Builds())


def scenarios_of(rule: Rule, run: RunView) -> list[str]:
    """Names of the micro scenarios of `run` that the rule selects."""
    names = dict.fromkeys(result.cell.point.scenario for result in run.cells if rule.matches(result.cell))
    return [name for name in names if not run.scenarios[name].whole_requests]


def judged(rule: Rule, run: RunView, scenario: str, builds: Builds) -> Verdict:
    """The verdict on one scenario."""
    base = str(rule.params["base"])
    revision = builds.revisions.get(base, Revision(None, None, base))
    step = command(rule, run, revision.name)
    if revision.commit is None:
        message = f"{scenario}: the folder that the run was started in has no git revision {base}"
        return verdict(rule, "", State.NOT_JUDGED, "no_revision", message, next_step=f"in the checkout: {step}")
    comparisons = [c for c in builds.compared if scenario in c.scenarios]
    of_this = [c for c in comparisons if difference(c, run) is None]
    with_base = [c for c in of_this if c.base is not None and c.base in (revision.commit, revision.branched_at)]
    if not with_base:
        why = wanting(comparisons, of_this, base, revision, run)
        return verdict(rule, "", State.NOT_JUDGED, "not_compared", f"{scenario}: {why}", next_step=step)
    decides = next((c for c in with_base if c.word == "SLOWER"), with_base[0])
    state, code = STATES[decides.word]
    of = f"{base} at {str(decides.base)[:12]}" + (
        "" if decides.base == revision.commit else ", where the branch left it"
    )
    others = f"; one of {len(with_base)} comparisons of this build" if len(with_base) > 1 else ""
    message = f"{scenario}: {decides.word} as {of}: {decides.reason}; {decides.comparison}{others}"
    evidence = {
        "comparison": decides.comparison,
        "base": decides.base,
        "word": decides.word,
        "compared": len(with_base),
    }
    again = f"{step} --processes 32: more processes tell more" if state is State.INCONCLUSIVE else None
    return verdict(rule, "", state, code, message, evidence, again)


def wanting(
    comparisons: list[ComparedBuild], of_this: list[ComparedBuild], base: str, revision: Revision, run: RunView
) -> str:
    """Return the reason why no comparison counts, from the newest that comes near."""
    if of_this:
        with_ = f"commit {of_this[0].base[:12]}" if of_this[0].base else "a build without a commit"
        return f"{of_this[0].comparison} compared this build with {with_}; {base} is {str(revision.commit)[:12]}"
    if comparisons:
        return f"{comparisons[0].comparison} compared another build: {difference(comparisons[0], run)}"
    return f"no comparison of this build with {base} is in the ledger beside the runs"


def difference(compared: ComparedBuild, run: RunView) -> str | None:
    """Describe the difference between the new build of a comparison and the build that `run` measures; None if there is
    none.
    """
    theirs = {key: value for key, value in compared.fingerprint.items() if not key.startswith(OF_JUDGING)}
    if "source_tree_sha256" not in theirs:
        return "its new side is not the code that runs here use"
    mine = run.fingerprint
    key = next((key for key in theirs if key in mine and mine[key] != theirs[key]), None)
    return None if key is None else f"{key} was {str(theirs[key])[:12]}, is {str(mine[key])[:12]}"


def command(rule: Rule, run: RunView, base: str) -> str:
    """The command that makes the comparison."""
    backend = next((cell.cell.point.backend for cell in run.cells), None)
    parts = ["specgate", "ab", "--base", base]
    for name in scenarios_of(rule, run):
        parts += ["--scenario", name]
    parts += ["--backend", backend] if backend else []
    return shlex.join([*parts, *kept(run.argv)])


def kept(argv: tuple[str, ...]) -> Iterator[str]:
    """Yield the words of the run's own command line about pair, options and folder. A comparison has to have them,
    too.
    """
    options = ("--pair", "--target", "--draft", "--out", "-o", "--option")
    for at, word in enumerate(argv):
        if word in options and at + 1 < len(argv):
            yield from (word, argv[at + 1])
        elif word.startswith(tuple(f"{option}=" for option in options if option.startswith("--"))):
            yield word


GATE = Compared()
