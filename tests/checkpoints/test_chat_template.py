"""The chat template, beside what transformers makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from specgate.checkpoints.chat_template import Chat, ChatTemplate, chat_template
from specgate.checkpoints.tokenizer_settings import read_settings
from specgate.errors import CheckpointError, UsageError
from tests.pairs.tiny import write_tokenizer

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA = """\
{{- bos_token }}
{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- if loop.index0 > 5 %}
        {%- break %}
    {%- endif %}
    {{- '<|start|>' + message['role'] + '<|end_of_role|>\\n\\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
OTHERS = """\
    {% generation %}{{ messages | tojson }}{% endgeneration %}
{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}
{{ ns.n }} {{ messages[0].content.strip() | upper }}{{ messages | map(attribute='role') | join(',') }}
"""
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "  Hi <b>&</b> \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "ü 🜚"}],
]


def tokenizer_with(folder: Path, template: object) -> Path:
    write_tokenizer(folder)
    config_file = folder / "tokenizer_config.json"
    config_file.write_text(json.dumps({**json.loads(config_file.read_text()), "chat_template": template}))
    return folder / "tokenizer.json"


def rendered(folder: Path, template: object, chat: Any) -> str:
    return beside(tokenizer_with(folder, template)).render(Chat(tuple(chat)), "p.jsonl:1")


def beside(tokenizer_file: Path) -> ChatTemplate:
    template = chat_template(read_settings(tokenizer_file))
    assert isinstance(template, ChatTemplate), template
    return template


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", [CHATML, LLAMA, MISTRAL, OTHERS])
def test_a_chat_is_rendered_as_transformers_renders_it(
    template: str, chat: list[dict[str, str]], tmp_path: Path
) -> None:
    ours = rendered(tmp_path, template, chat)
    theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert ours == theirs


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    file = tokenizer_with(tmp_path, "from the config")
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert beside(file).render(Chat(tuple(CHATS[0])), "") == "from the file"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert rendered(tmp_path, named, CHATS[0]) == "plain"


def test_a_tokenizer_without_a_template_has_none(tmp_path: Path) -> None:
    file = tokenizer_with(tmp_path, None)
    none = "the target's tokenizer has no chat template"
    assert chat_template(read_settings(file)) == none
    (tmp_path / "tokenizer_config.json").unlink()
    assert chat_template(read_settings(file)) == none


def test_the_date_is_always_the_same(tmp_path: Path) -> None:
    assert rendered(tmp_path, "{{ strftime_now('%d %b %Y') }}", CHATS[0]) == "26 Jul 2024"
    assert beside(tmp_path / "tokenizer.json").name == "tokenizer_config.json, dated 26 Jul 2024"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('only users, please') }}", "p.jsonl:1: messages: .*refuses them: 'only users, please'"),
        ("{{ messages[0].nothing.deep }}", "refuses them: .*has no attribute 'nothing'"),
        ("{{ ''.__class__.__mro__ }}", "refuses them: .*unsafe"),
        ("{{ messages.append(1) }}", "refuses them: .*unsafe"),
        ("{% for i in range(10**9) %}a{% endfor %}", "refuses them: .*Range too big"),
        ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "refuses them: 'more than 67108864 characters'"),
        ("{% if %}", "chat_template, line 1: not a Jinja template"),
    ],
)
def test_a_template_that_cannot_render_is_refused_with_its_reason(template: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(tmp_path, template, CHATS[0])


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff"])
def test_a_config_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        read_settings(tmp_path / "tokenizer.json")


PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}]
ITERATES = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}<{{ p.text }}>{% endfor %}{% endfor %}"
EITHER = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "chat", "text"),
    [
        (ITERATES, PARTS, "<Hi><there>"),
        (ITERATES, [{"role": "user", "content": "Hi"}], "<Hi>"),
        (EITHER, PARTS, "Hi"),
        (EITHER, [{"role": "user", "content": "Hi"}], "Hi"),
        ("{{ messages[0].content }}", PARTS, "Hi\nthere"),
        ("{{ messages[0].content | trim }}", PARTS, "Hi\nthere"),
        ("{{ messages | tojson }}", PARTS, '[{"role": "user", "content": "Hi\\nthere"}]'),
    ],
)
def test_content_has_the_form_that_the_template_reads(template: str, chat: Any, text: str, tmp_path: Path) -> None:
    """As vLLM's chat end point has it: a template that reads texts alone gets the parts one below the other."""
    assert rendered(tmp_path, template, chat) == text


CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}


def test_arguments_of_tool_calls_become_objects_as_servers_hand_them_to_templates(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %}{% endfor %}"
    assert rendered(tmp_path, template, [CALL]) == "1"
    assert rendered(tmp_path, "{{ 'a' + messages[0].content + 'b' }}", [CALL]) == "ab", "no content is an empty text"
    assert rendered(tmp_path, "{{ messages[0].content is defined }}", [CALL]) == "False"


def test_a_chat_with_tools_takes_the_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "{{ tools | length }} tools"}, {"name": "default", "template": "plain"}]
    template = beside(tokenizer_with(tmp_path, named))
    assert template.render(Chat(tuple(PARTS), {"tools": [{}, {}]}), "") == "2 tools"
    assert template.render(Chat(tuple(PARTS)), "") == "plain"


def test_a_record_may_say_what_the_template_gets(tmp_path: Path) -> None:
    template = "{{ add_generation_prompt }} {{ thinking is defined }} {{ messages | length }}"
    chat = Chat(tuple(PARTS), {"add_generation_prompt": False, "messages": []})
    assert beside(tokenizer_with(tmp_path, template)).render(chat, "") == "False False 1"
