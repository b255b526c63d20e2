"""Prompts as text, for servers that accept no token ids."""

from __future__ import annotations

from pathlib import Path

from specgate.errors import BackendError, UsageError


class PromptTexts:
    """Turns prompts into text with the target's tokenizer. Refuses a text that would give other tokens."""

    def __init__(self, file: Path) -> None:
        """`file`: the target's tokenizer. Raises UsageError where there is none."""
        from specgate.checkpoints.tokenizer_file import read_tokenizer

        if not file.is_file():
            raise UsageError(
                f"option prompts = text: {file} does not exist", hint="leave it out: token ids are sent then"
            )
        self.tokenizer = read_tokenizer(file)

    def of(self, prompt: tuple[int, ...]) -> str:
        """The text of `prompt`. Raises BackendError where tokenising it again gives other tokens."""
        text: str = self.tokenizer.decode(list(prompt), skip_special_tokens=False)
        again = self.tokenizer.encode(text, add_special_tokens=False).ids
        if tuple(again) != prompt:
            raise BackendError(
                f"a prompt of {len(prompt)} tokens, as text, has {len(again)}, or other ones",
                hint="leave out -o prompts=text",
            )
        return text
