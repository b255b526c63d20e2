"""Conversations of data sets: turns → messages of a chat, the first question, and the questions behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from specgate.checkpoints.chat_template import FIELDS, VARIABLES, Chat, Message
from specgate.files.json_text import parse_json, shown
from specgate.planning.prompt_files.fields import Fields, LeftOut

CONVERSATIONS: Final = ("conversations", "conversation", "dialogue", "dialog", "chat", "turns", "messages")
"""Keys that data sets have for the turns of a conversation."""
ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "bot", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("function", "tool", "observation"), "tool"),
    "system": "system",
}
"""Names that data sets have for the roles of a chat → those of a chat template."""
SPEAKER: Final = ("role", "from")
WORDS: Final = ("content", "value", "text")
NO_TEXT: Final = ("image", "images", "video", "videos", "audio", "audios")
"""Keys of a conversation about something that is no text."""


def turns_of(fields: Fields, key: str) -> list[Message]:
    """The turns of a chat as `{"role": …, "content": …}` with their other keys. Raises LeftOut for a chat about more
    than text.
    """
    value = fields.of(key)
    if other := next((name for name in NO_TEXT if fields.data.get(name)), None):
        raise LeftOut(f"{other} in it")
    if not isinstance(value, list) or not all(isinstance(t, dict) for t in value):
        fields.wrong(key, value, 'a list of {"role": …, "content": …} was expected')
    turns = list[Message]()
    for index, turn in enumerate(value):
        place, usual = f"{fields.where}: {key}[{index}]", "assistant" if index % 2 else "user"
        pair = bool(turn) and turn.keys() <= ROLES.keys()  # {"human": …, "assistant": …}
        single = [{"from": role, "value": text} for role, text in turn.items()] if pair else [turn]
        turns += [turn_of(Fields(place, data), usual) for data in single]
    return turns


def turn_of(fields: Fields, usual: str) -> Message:
    """One turn. `usual`: its role where none is said."""
    speaker, words = fields.first(*SPEAKER), fields.first(*WORDS)
    role, content = fields.data.get(speaker, usual), fields.data.get(words)
    if not isinstance(role, str) or not role:
        fields.wrong(speaker, role, "a text was expected")
    role = ROLES.get(role.lower(), role) if speaker == "from" else role
    if isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(kind, str):
                fields.wrong(words, content, "a text or a list of parts with a type was expected")
            if kind != "text" or not isinstance(part.get("text"), str):
                raise LeftOut(f"content of type {shown(kind, 40)}")
    elif not isinstance(content, str) and not (content is None and fields.has("tool_calls")):
        fields.wrong(words, content, "a text was expected")
    others = {key: value for key, value in fields.data.items() if key not in (*SPEAKER, *WORDS)}
    return {"role": role, "content": content, **others}


def messages(fields: Fields, key: str) -> Chat:
    """A chat whose last message gets answered. An answer at its end is not a part of the prompt."""
    turns = turns_of(fields, key)
    count = len(turns)
    while turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise LeftOut("no question before the answer" if fields.of(key) else "no turns")
    variables = {name: fields.data[name] for name in VARIABLES if fields.has(name)}
    if isinstance(tools := variables.get("tools"), str):  # some data sets have JSON in a text there
        try:
            variables["tools"] = parse_json(tools)
        except ValueError as error:
            fields.wrong("tools", tools, f"not JSON: {error}")
    more = fields.data.get("chat_template_kwargs") or {}
    if not isinstance(more, dict):
        fields.wrong("chat_template_kwargs", more, "an object was expected")
    if fields.data.get("tool_choice") == "none" or variables.get("tools") == []:
        variables.pop("tools", None)
    given = (name for name in FIELDS if fields.has(name))
    beside = {name: fields.data[name] for name in given if name != "tool_choice" or "tools" in variables}
    return Chat(tuple(turns), {**variables, **more}, answered=len(turns) < count, fields=beside)


def later_questions(turns: Sequence[Message]) -> tuple[str, ...]:
    """The user's questions behind the first, up to one that is no text or a turn that is neither's."""
    questions = list[str]()
    for turn in turns:
        if turn["role"] not in ("user", "assistant", "system") or not isinstance(turn["content"], str):
            break
        if turn["role"] == "user" and turn["content"]:
            questions.append(turn["content"])
    return tuple(questions[1:])


def first_question(turns: Sequence[Message]) -> str | Chat:
    """The first question, with what the system says before it. Raises LeftOut where the chat begins otherwise."""
    before = list[Message]()
    for turn in turns:
        role, content = turn["role"], turn["content"]
        if role == "user":
            if not content:
                raise LeftOut("the question is empty")
            plain = isinstance(content, str) and not before
            return content if plain else Chat((*before, {"role": "user", "content": content}))
        if role != "system":
            known = role in ROLES.values()
            raise LeftOut(f"first turn is the {role}'s" if known else f"first turn is that of {shown(role, 40)}")
        if content:
            before.append({"role": "system", "content": content})
    raise LeftOut("no question" if turns else "no turns")


def with_system(fields: Fields, question: str | Chat) -> str | Chat:
    """The question behind the system's turn in `system` or `system_prompt`, if the record has one beside its turns."""
    system = fields.data.get(fields.first("system", "system_prompt"))
    if not isinstance(system, str) or not system:
        return question
    turns = question.turns if isinstance(question, Chat) else ({"role": "user", "content": question},)
    own = any(turn["role"] == "system" for turn in turns)
    return question if own else Chat(({"role": "system", "content": system}, *turns))
