"""A URL is enough: commands on servers of the stub, with nothing else said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgate.commands.servers import Urls
from specgate.errors import UsageError
from specgate.files.run_folder import RunFolder
from tests.backends.servers.helpers import running_stub
from tests.support.command import Cli


@pytest.mark.slow("starts servers")
def test_two_urls_give_a_speed_verdict_and_one_of_them_the_acceptance(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's own tokenizer, and the prompts that come along."""
    monkeypatch.setenv("SPECGATE_CACHE", str(cli.folder / "cache"))
    with running_stub("vllm", 0, "--rate", "50") as plain, running_stub("vllm", 2, "--rate", "50") as two:
        smoked = cli.run("smoke", f"{two}/v1", "--json", pair=False)
        done = cli.run("micro", f"{two},{plain}", "--steps", "12", "--measurement-runs", "1", "--plain", pair=False)
    assert smoked.returncode == 0 and json.loads(smoked.stdout)["role"] == "spec-2", smoked.stderr
    run = RunFolder.open(cli.newest()).read_run()
    assert [c.cell.role.name for c in run.cells] == ["baseline", "spec-2"], done.stdout + done.stderr
    speedup, acceptance = run.comparisons[0].speedup.value, run.cells[1].acceptance
    # accepted drafts of steps: 2, 1, 2, 0, 2, 2, again and again
    assert acceptance is not None and acceptance.acceptance_length == pytest.approx(1 + 9 / 6, rel=0.1)
    assert speedup == pytest.approx(acceptance.acceptance_length, rel=0.15)
    assert "served-tokenizer" not in done.stderr and "the server's own" in done.stderr
    assert done.returncode in (0, 3), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argument", "right"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("cpu-1k-single", "--scenario cpu-1k-single"),
        ("vllm", "--backend vllm"),
        ("questions.jsonl", "--prompts questions.jsonl"),
        ("nonsense", "http://HOST:PORT"),
        ("https//x", "http://HOST:PORT"),
    ],
)
def test_an_argument_that_is_no_url_is_refused_with_what_would_be_right(argument: str, right: str) -> None:
    with pytest.raises(UsageError) as error:
        Urls().convert(argument, None, None)
    assert error.value.hint is not None and error.value.hint.startswith(right)


@pytest.mark.parametrize("argument", ["user:pass-word-1@host:80", "host:80?key=sk-abcdefghijklmnopqrstuv"])
def test_an_argument_that_may_hold_a_key_is_not_repeated(argument: str, cli: Cli, tmp_path: Path) -> None:
    for text in (argument, f"http://{argument}"):
        done = cli.run("micro", text, pair=False)
        assert done.returncode == 2
        assert "pass-word-1" not in done.stdout + done.stderr and "sk-abc" not in done.stdout + done.stderr
