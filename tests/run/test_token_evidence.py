"""Records of a run beside its timed blocks: their number, their time, and their use in a resumed run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgate.contract import BaselineText, Block, Run, TopTokens
from specgate.files.run_folder import RunFolder
from specgate.run.rescoring import in_few_passes
from specgate.run.token_evidence import shown_by_both
from tests.support.command import NOT_SCORED, Cli
from tests.support.stored_runs import as_if_killed

SAMPLED = "checks: {text: sampled, rescored_by: none}\n"


def micro(cli: Cli) -> Run:
    cli.run("micro", "--scenario", "gate.yaml", "--policy", "policy.yaml", "--backend", "fake", code=0)
    return RunFolder.open(cli.newest()).read_run()


def test_texts_are_compared_whole_until_a_green_run_of_the_fingerprint_and_sampled_then(cli: Cli) -> None:
    policy = cli.folder / "policy.yaml"
    policy.write_text(policy.read_text().replace(NOT_SCORED, SAMPLED))
    first, second = micro(cli), micro(cli)
    assert first.sampled_after is None and second.sampled_after == first.id
    assert {c.tokens.whole_sets for c in first.comparisons} == {(0, 1, 2, 3)}
    (drawn,) = {c.tokens.whole_sets for c in second.comparisons}
    assert len(drawn) == 1
    assert all(c.tokens.compared_tokens < (c.tokens.emitted_tokens or 0) for c in second.comparisons)
    messages = [v.message for v in second.verdicts if v.gate == "tokens"]
    assert all("more in prompt sets that this run does not sample" in message for message in messages)
    # Another policy is another fingerprint.
    policy.write_text(policy.read_text().replace("min: 1.0", "min: 1.1"))
    assert micro(cli).sampled_after is None
    assert cli.run("runs", "verify", cli.newest(), pair=False).returncode == 0


def test_a_text_is_decoded_once_per_prompt_set_and_is_no_timed_block(cli: Cli) -> None:
    run = micro(cli)
    folder = RunFolder.open(cli.newest())
    texts = folder.lines(BaselineText)
    assert [t.prompt_set for t in texts] == [0, 1, 2, 3]
    longest = max(len(t) for b in folder.lines(Block) for t in b.tokens)
    assert {len(t) for text in texts for t in text.tokens} == {longest}
    timed = [b.span_ns for b in folder.lines(Block) if b.span_ns]
    assert not [t for t in texts for begin, end in timed if t.span_ns[0] < end and begin < t.span_ns[1]]
    assert run.check_seconds["text"] > 0


def test_a_resumed_run_makes_up_for_what_an_interrupted_one_did_not_check(cli: Cli) -> None:
    micro(cli)
    folder = cli.newest()
    whole = (folder / "samples" / "texts.jsonl").read_text()
    # As if the process had been killed before the third set's text, and before the second engine was asked.
    (folder / "samples" / "texts.jsonl").write_text("".join(whole.splitlines(keepends=True)[:2]))
    (folder / "samples" / "rescored.jsonl").unlink()
    as_if_killed(folder)
    cli.run("micro", "--resume", folder, pair=False, code=0)
    run = RunFolder.open(folder).read_run()
    assert {c.tokens.whole_sets for c in run.comparisons} == {(0, 1, 2, 3)}
    assert all(c.rescored is not None and c.rescored.unscored for c in run.cells)


FIRST = TopTokens((-0.5, -0.75, -2.0, -3.0), (7, 3, 9, 4))


def test_two_passes_are_held_against_each_other_on_the_tokens_that_both_show() -> None:
    again = TopTokens((-0.6, -0.7, -2.9, -3.1), (3, 7, 5, 4))
    assert shown_by_both(FIRST, again, (7, 3)) == (TopTokens((-0.5, -0.75, -3.0), (7, 3, 4)), (-0.7, -0.6, -3.1))
    assert shown_by_both(FIRST, again, (7, 9)) == (FIRST, ()), "a token that is to be judged must stay"
    assert shown_by_both(FIRST, again, (7, 8))[1], "one that the first pass does not show is wrong in any case"


def test_a_second_pass_with_the_bits_of_the_first_says_nothing_of_rounding() -> None:
    for again in (FIRST, TopTokens(FIRST.values[:2], FIRST.tokens[:2]), None, TopTokens((-0.5, -0.75))):
        assert shown_by_both(FIRST, again, (7, 3)) == (FIRST, ())
    assert shown_by_both(TopTokens((2.0, 1.0)), FIRST, (7, 3)) == (TopTokens((2.0, 1.0)), ())


@given(st.lists(st.tuples(st.tuples(st.integers(0, 1), st.integers(0, 1)), st.lists(st.integers(0, 1)).map(tuple))))
def test_a_text_that_begins_another_one_needs_no_pass_of_its_own(
    texts: list[tuple[tuple[int, int], tuple[int, ...]]],
) -> None:
    groups = in_few_passes(texts)
    assert sorted(i for group in groups for i in group) == list(range(len(texts)))
    for first, *others in groups:
        assert all(
            texts[i][0] == texts[first][0] and texts[first][1][: len(texts[i][1])] == texts[i][1] for i in others
        )
    heads = [texts[first] for first, *_ in groups]
    ends = {(p, t) for p, t in texts if not any(p == q and t != u and u[: len(t)] == t for q, u in texts)}
    assert len(heads) == len(ends), "one pass for each text that no longer one begins with"
