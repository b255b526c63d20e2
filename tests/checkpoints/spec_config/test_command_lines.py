"""Commands in scripts and manifests: the words are those that a shell would pass, and one server is picked."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgate.checkpoints.spec_config.command_lines import commands, split
from specgate.checkpoints.spec_config.sources import read_source
from specgate.errors import UsageError

SECTION = '{"method": "eagle3", "model": "/m/d-eagle3", "num_speculative_tokens": 3}'
SCRIPTS = {
    "a script": f"""#!/bin/bash
MODEL=/m/t   # the target
export TP=2
pip install vllm==0.25.1
vllm serve $MODEL \\
  --tensor-parallel-size ${{TP}} \\
  --speculative-config '{SECTION}' > log.txt 2>&1 &
curl http://localhost:8000/health
""",
    "docker": "docker run --gpus all -m 100g -p 80:80 -e TP=2 vllm/vllm-openai:v0.25.1 --model /m/t -tp 2 "
    f"--speculative-config '{SECTION}'",
    "docker with the model first": "docker run -e TP=2 vllm/vllm-openai:v0.33.0 /m/t --tensor-parallel-size 2 "
    f"--speculative-config '{SECTION}'",
    "a prefix": f"CUDA_VISIBLE_DEVICES=0,1 nohup vllm serve --enable-log-requests -tp=2 /m/t -sc '{SECTION}' &",
    "a module": f"python3 -m vllm.entrypoints.openai.api_server --model=/m/t -tp 2 --speculative_config '{SECTION}'",
    "a unit": f"[Service]\nEnvironment=A=1\nExecStart=/opt/vllm serve /m/t \\\n -tp 2 -sc '{SECTION}'\nRestart=no\n",
    "a list": json.dumps(["vllm", "serve", "/m/t", "-tp", "2", "-sc", SECTION]),
    "a shell in docker": f"docker run vllm/vllm-openai bash -c \"vllm serve /m/t -tp 2 -sc '{SECTION}'\"".replace(
        SECTION, SECTION.replace('"', '\\"')
    ),
}
MANIFESTS = {
    "a pod": f"""apiVersion: v1
kind: Service
spec: {{ports: [{{port: 80}}]}}
---
kind: Pod
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:latest
    args: [--model, $(MODEL), --tensor-parallel-size, "2", --speculative-config, '{SECTION}']
    env: [{{name: MODEL, value: /m/t}}]
""",
    "a shell in a pod": f"""kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: registry.local/ours
        command: ["/bin/sh", "-c"]
        args:
        - >
          vllm serve /m/t --tensor-parallel-size 2
          --speculative-config '{SECTION}'
""",
    "compose": f"""services:
  web: {{image: nginx, command: [nginx, -g, daemon off;]}}
  llm:
    image: vllm/vllm-openai
    command: ["--model", "/m/t", "-tp", "2", "--speculative-config", '{SECTION}']
""",
}


def of(source: str) -> list[object]:
    config = read_source(source)
    assert config.engine == "vllm" and not config.undecided
    return [config.value(term) for term in ("target", "tp", "method", "k", "draft_model")]


RIGHT = ["t", 2, "eagle3", 3, "d-eagle3"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_server_of_a_script_is_read(tmp_path: Path, name: str) -> None:
    (file := tmp_path / "serve.sh").write_text(SCRIPTS[name])
    assert of(str(file)) == RIGHT


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_server_of_a_manifest_is_read(tmp_path: Path, name: str) -> None:
    (file := tmp_path / "serve.yaml").write_text(MANIFESTS[name])
    assert of(str(file)) == RIGHT


def test_two_servers_in_one_file_are_not_mixed(tmp_path: Path) -> None:
    (file := tmp_path / "two.sh").write_text(f"vllm serve /m/t &\nvllm serve /m/t --speculative-config '{SECTION}'\n")
    with pytest.raises(UsageError, match="2 servers are started in it"):
        read_source(str(file))
    (file := tmp_path / "two.yaml").write_text(
        MANIFESTS["compose"].replace("image: nginx, command: [nginx", "image: vllm/vllm-openai, command: [--model")
    )
    with pytest.raises(UsageError, match="2 servers are started in it"):
        read_source(str(file))


WORD = st.text(
    st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="!`$"), min_size=1, max_size=8
)


@settings(max_examples=40)
@given(st.lists(WORD, min_size=1, max_size=5))
def test_quoted_words_come_out_as_they_went_in(words: list[str]) -> None:
    assert list(split(shlex.join(words), "test")) == [words]


def test_words_are_split_as_a_shell_splits_them() -> None:
    for text in ("a 'b c' \"d 'e'\" f\\ g", 'x="a b" y=\'{"k": 1}\' # no', "p'q'\"r\"s", 'a "b\\"c"'):
        script = f"set -- {text}\nfor w; do printf '%s\\n' \"$w\"; done"
        shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
        assert list(split(text, "test")) == [shell]


def test_a_variable_is_replaced_where_the_text_sets_it() -> None:
    (command,) = commands("A=1; export B=$A\nserve $A ${B} $(C) $D", "test")
    assert command.words == ("serve", "1", "1", "$(C)", "$D")
