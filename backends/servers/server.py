"""One server of one role: start it or attach to it, send requests, read its counters, end it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from specgate.backends.servers import blocks
from specgate.backends.servers.adapter import UNTOLD, Adapter, Launch
from specgate.backends.servers.adapters import chat, openai
from specgate.backends.servers.answers import Answer, LostIds, Read, understand
from specgate.backends.servers.client import Client, Recording, StreamLimit, TurnedAway
from specgate.backends.servers.exchange import Ask, Json, OtherForm, Reading
from specgate.backends.servers.facts.reported import ServerReport
from specgate.backends.servers.facts.served import settings_in
from specgate.backends.servers.failures import COMMON, cause, diagnosis, explain, read_end
from specgate.backends.servers.meter import Meter
from specgate.backends.servers.options import Options, local_port
from specgate.backends.servers.process import HOST, Command, ServerProcess, is_free, shown, wait_until_free
from specgate.backends.servers.secrets import Secret
from specgate.backends.servers.texts import TextTokens
from specgate.checkpoints.spec_config.launch_checks import check_command
from specgate.contract import Role, ServedModel
from specgate.contract.load import OfferedLoad
from specgate.contract.protocols import masked
from specgate.contract.samples.memory import EngineMemory
from specgate.errors import BackendError
from specgate.machine.host import listeners, name_of, root_of

SETTLE_S: Final = 5.0
"""How long counters may lag behind the answers."""
DYING_S: Final = 0.3
"""How long it may take, after a connection broke, until the process is seen to have ended."""
POLL_S: Final = 0.05
READY_POLL_S: Final = 0.1
LONGEST_VERSION: Final = 200

Send = Callable[[str, Sequence[Json], StreamLimit], Sequence[Recording | TurnedAway]]
"""(path, bodies, limit) → a recording of every answer."""


def checked_command(adapter: Adapter, launch: Launch) -> tuple[Command, str | None]:
    """(the command that starts a server, the shape of the trees that it drafts: None for chains).

    Raises UsageError for flags of the user that contradict the role or the pair (`check_command`).
    """
    bare = replace(launch.options, args={}, drafter=launch.options.drafter_of(launch.role))
    own = adapter.command(replace(launch, options=bare))
    command, where = adapter.command(launch), f"{adapter.name} {launch.role}"
    return command, check_command(adapter.name, command.argv, launch.role.k, where, own.argv)


@dataclass(frozen=True, slots=True)
class Running:
    """Address of a server. For one started here, also its process, port, and log from byte `log_start` on."""

    url: str
    process: ServerProcess | None = None
    port: int | None = None
    log: Path | None = None
    log_start: int = 0


class Server:
    """A server that is ready for requests. All that goes wrong raises BackendError, with its cause where known."""

    def __init__(self, adapter: Adapter, role: Role, running: Running, options: Options) -> None:
        self.adapter, self.role, self.running, self.options = adapter, role, running, options
        self.where = f"{adapter.name} {role} at {running.url}"
        self.version = ""
        self.texts: TextTokens | None = None
        """Makes tokens of answers without ids; None where these are refused."""
        self.meter: Meter = adapter.meter()
        secret = Secret.from_environment(options.api_key_env)
        self.client = Client(running.url, stall_s=options.stall_s, secret=secret)
        try:
            with self.explained():
                self._wait_until_ready()
                model = openai.served_model(self.client, options.model)
                self.model = model.name
                self.version = version_of(adapter, self.client, self.where)
                self.chats_only = self._lacks_completions()
                self.report = self._report(model)
                self.counted = self.meter.read(self.client)
        except BaseException:
            self.stop()
            raise

    def _lacks_completions(self) -> bool:
        """True if a server that runs already has no end point for completions."""
        if self.running.process is not None or self.options.endpoint == "completions":
            return False
        path, _ = self.adapter.request(Ask(self.model, (), 1, ignore_eos=True))
        if not chat.lacks_completions(self.client, path, self.model):
            return False
        if self.options.endpoint is None:
            print(f"{self.where}: {path} is not there: {chat.PATH} is asked", flush=True)
        return True

    def _report(self, model: ServedModel) -> ServerReport:
        """Ask the server about itself and its memory. A server that was started here serves the pair."""
        log = self.running.log
        reported = self.adapter.reported(self.client, read_end(log, self.running.log_start) if log else ())
        pid = self._process()
        # With servers=apart, one that is started here has the GPU to itself.
        beside = reported.kv.of_free and (self.running.process is None or self.options.servers != "apart")
        self.memory = EngineMemory(pid, reported.kv.tokens, reported.kv.bytes, beside)
        if self.running.process is not None:
            return ServerReport(self.role, self.version, reported.settings)
        served = replace(model, path=reported.path or model.path, architecture=reported.architecture)
        settings = {**self._logged(), **reported.settings}
        return ServerReport(self.role, self.version, settings, served, name_of(pid), reported.on_cpu)

    def _logged(self) -> dict[str, str]:
        """Return the settings in the log that the owner of a running server names."""
        log = self.options.log_of(self.role)
        return settings_in(self.adapter.name, log, self.version, self.role) if log else {}

    def _process(self) -> int | None:
        """The number of its process. Of one that was started elsewhere it is what listens here, which may be a tunnel
        or a proxy; None where that is not seen.
        """
        if self.running.process is not None:
            return self.running.process.pid
        port = local_port(self.running.url)
        return root_of(listeners([port])) if port is not None else None

    @staticmethod
    def launched(adapter: Adapter, launch: Launch, flags: Sequence[str] = ()) -> Running:
        """Start a server for `launch.role` on the port of `launch`, with more `flags` than the adapter's. It is not
        waited for. Raises BackendError where the port is in use.
        """
        if not is_free(launch.port):
            hint = "leave out -o port, and a free one is found" if launch.options.port else None
            raise BackendError(f"port {launch.port} of {HOST} is in use", hint=hint)
        command, _ = checked_command(adapter, launch)
        command = replace(command, argv=(*command.argv, *flags))
        log = launch.folder / f"{adapter.name}-{launch.role}.log"
        print(f"starting: {shown(command.argv)}", flush=True)
        log_start = log.stat().st_size if log.exists() else 0
        process = ServerProcess(command, log, launch.options.stop_s)
        return Running(f"http://{HOST}:{launch.port}", process, launch.port, log, log_start)

    def ask_to_stop(self) -> None:
        if self.running.process is not None:
            self.running.process.ask_to_stop()

    def stop(self) -> None:
        """Close the connections. End the server if it was started here."""
        self.client.close()
        end(self.running)

    # ── a block ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, asks: Sequence[Ask], prompt_tokens: Sequence[int | None]) -> tuple[list[Answer], Reading]:
        """Send all `asks` at once; return the answers and what the server counted for them.

        `prompt_tokens` are the lengths of the prompts, None where they are not known here. Only the sending and
        receiving is timed.
        """
        outcomes, counted = self._carry_out(asks, prompt_tokens, self.client.stream)
        return [answer for answer in outcomes if isinstance(answer, Answer)], counted

    def serve(
        self, asks: Sequence[Ask], prompt_tokens: Sequence[int | None], offered: OfferedLoad
    ) -> tuple[list[Answer | TurnedAway], Reading]:
        """As `answer`, sent as `offered` says, which may take the list of `asks` again. Requests that the server turns
        away stand in the place of their answers; where it turned all of them away, raises BackendError.
        """
        outcomes, counted = self._carry_out(asks, prompt_tokens, partial(self.client.serve, offered=offered))
        refused = [one for one in outcomes if isinstance(one, TurnedAway)]
        if len(refused) == len(outcomes):
            message = f"all {len(outcomes)} requests were refused, the first with: {refused[0].reason}"
            raise BackendError(f"{self.where}: {message}", hint="a smaller load, or a server that queues more requests")
        return outcomes, counted

    def _carry_out(
        self, asks: Sequence[Ask], prompt_tokens: Sequence[int | None], send: Send
    ) -> tuple[list[Answer | TurnedAway], Reading]:
        """Send `asks` by `send`, between two readings of the counters."""
        with self.explained():
            if self.running.process is None and self.options.prefix_cache != "on":
                self.adapter.forget(self.client)
            before = self._quiet_reading()
            requests = [self._request(ask) for ask in asks]
            longest, most = max(ask.new_tokens for ask in asks), max(ask.top for ask in asks)
            limit = StreamLimit.of(longest, cumulative=self.adapter.cumulative, top=most)
            recordings = send(requests[0][0], [body for _, body in requests], limit)
            again = [i % len(asks) for i in range(len(recordings))]
            outcomes = self._understood(recordings, [asks[i] for i in again], [prompt_tokens[i] for i in again])
            answers = [answer for answer in outcomes if isinstance(answer, Answer)]
            counted = self._settled(before, answers)
            blocks.refuse_other_traffic(counted, answers, self.where)
            return outcomes, counted

    def _request(self, ask: Ask) -> tuple[str, Json]:
        if ask.chat is None:
            return self.adapter.request(ask)
        return chat.PATH, openai.body(ask, *sorted(self.adapter.expresses.settings), **self.adapter.chat_fields(ask))

    def _reading(self, ask: Ask) -> Read:
        return self.adapter.read if ask.chat is None else chat.read

    def _understood(
        self, recordings: Sequence[Recording | TurnedAway], asks: Sequence[Ask], prompt_tokens: Sequence[int | None]
    ) -> list[Answer | TurnedAway]:
        """The answers in place of their recordings. A LostIds error is about all requests that lost some."""
        outcomes, lost = list[Answer | TurnedAway](), dict[int, LostIds]()
        for slot, (recording, ask, length) in enumerate(zip(recordings, asks, prompt_tokens, strict=True)):
            if isinstance(recording, TurnedAway):
                outcomes.append(recording)
                continue
            try:
                where = f"{self.where}, slot {slot}"
                answer = understand(recording, ask, self._reading(ask), where, length, self.texts)
                by_events = self.adapter.counts_events
                outcomes.append(blocks.counted_by_events(answer, self.role, where) if by_events else answer)
            except LostIds as error:
                lost[slot] = error
        if lost:
            first = next(iter(lost.values()))
            first.slots = tuple(lost)
            raise first
        return outcomes

    def encoded(self, text: str) -> tuple[int, ...]:
        """The tokens of a text by the server's own tokenizer; () if it has no end point for that."""
        return self.adapter.token_ids(self.client, self.model, text, special=False) or ()

    def _read(self) -> Reading:
        """The counters now. Raises BackendError where one is lower than at any time before."""
        reading = self.meter.read(self.client)
        blocks.refuse_fallen(self.counted, reading, self.where)
        self.counted = reading
        return reading

    def _quiet_reading(self) -> Reading:
        """The counters while the server is idle. Raises BackendError where it works for somebody else."""
        deadline = time.monotonic() + SETTLE_S
        while (reading := self._read()).busy:
            if time.monotonic() > deadline:
                raise BackendError(
                    f"{self.where}: {reading.busy} requests are running or waiting, and none is ours",
                    hint="other traffic: a measurement needs the server alone",
                )
            time.sleep(POLL_S)
        return reading

    def _settled(self, before: Reading, answers: Sequence[Answer]) -> Reading:
        """Return the counts for `answers`, once two readings in a row agree: some counters lag behind others."""
        deadline, last = time.monotonic() + SETTLE_S, None
        while True:
            counted = blocks.between(before, self._read(), self.where)
            complete = blocks.accounted_for(counted, answers) and not counted.busy and counted == last
            if complete or time.monotonic() > deadline:
                return counted
            last = counted
            time.sleep(POLL_S)

    # ── beginning and end ────────────────────────────────────────────────────────────────────────────────────────────

    def _wait_until_ready(self) -> None:
        """Wait until the server takes requests. Raises BackendError where it ends or takes too long."""
        deadline = time.monotonic() + (self.options.start_s if self.running.process else self.options.stall_s)
        while (status := self._health()) != 200:
            process = self.running.process
            if process is None and status == 0:
                raise BackendError(f"{self.where}: nobody listens there", hint="start the server, or correct -o url")
            if process is not None and process.ended is not None:
                raise BackendError(f"{self.where}: it ended before it was ready")
            if time.monotonic() > deadline:
                state = f"{self.adapter.health} says {status}" if status else "nobody listens"
                raise BackendError(f"{self.where}: not ready in time: {state}", hint="-o start_s=SECONDS waits longer")
            time.sleep(READY_POLL_S)
        self._refuse_silent_failures()

    def _health(self) -> int:
        """The status that tells whether it takes requests; 0 where nothing listens, or where a server that was started
        here listens and says nothing yet.
        """
        try:
            return self.client.status(self.adapter.health)
        except BackendError:
            if self.running.process is None:
                raise
            return 0

    def _refuse_silent_failures(self) -> None:
        """Raise BackendError where the log says that the server started without its draft."""
        if self.running.log is None or not self.role.speculative:
            return
        silent = [failure for failure in self.adapter.failures if failure.silent]
        for failure, line in explain(read_end(self.running.log, self.running.log_start), silent):
            raise BackendError(f"{self.where}: {failure.cause}", hint=f"{line}\n  log: {self.running.log}")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add to a BackendError what explains it: the cause from the server's log; and the version, if the versions
        that are known differ from it or the error is about a form.
        """
        try:
            with self._logged_cause():
                yield
        except BackendError as error:
            versions = self.adapter.versions
            named = self.version and UNTOLD not in (self.version, versions)
            if named and (isinstance(error, OtherForm) or not is_known(self.version, versions)):
                version = f"{self.adapter.name} version {masked(self.version)} (known: {versions})"
                error.message = f"{version}: {error.message}"
            raise

    @contextmanager
    def _logged_cause(self) -> Iterator[None]:
        """Add the cause from the server's log to a BackendError. The log often knows more than a broken connection."""
        log = self.running.log
        began = log.stat().st_size if log is not None and log.exists() else 0
        try:
            yield
        except BackendError as error:
            if log is None or str(log) in (error.hint or ""):
                raise
            code, known = self._ended_by_now(), (*self.adapter.failures, *COMMON)
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                why = diagnosis(log, self.running.log_start, known)
                seen = error.message.removeprefix(f"{self.where}: ")
                raise BackendError(f"{self.where}: the server {how} ({seen})", hint=why) from error
            if (reason := cause(read_end(log, began), known)) is not None:
                raise BackendError(error.message, hint=f"{reason}\n  log: {log}") from error
            raise

    def _ended_by_now(self) -> int | None:
        process, deadline = self.running.process, time.monotonic() + DYING_S
        while process is not None and process.ended is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return process.ended if process is not None else None


def is_known(version: str, known: str) -> bool:
    """True if `version` is one of the comma-separated `known` ones, which may leave out its last parts."""
    return any(re.match(rf"{re.escape(name)}(?!\d)", version) for name in known.split(", "))


def version_of(adapter: Adapter, client: Client, where: str) -> str:
    """The version that the server tells. Raises BackendError where it is not told as this engine does."""
    try:
        version = adapter.version(client)
    except (LookupError, TypeError) as error:
        hint = "is that server of the engine that --backend names, and in a version that docs/engines.md names?"
        raise BackendError(
            f"{where}: it does not tell its version: {type(error).__name__} {error}", hint=hint
        ) from error
    if len(version) > LONGEST_VERSION:
        raise BackendError(
            f"{where}: a version of {len(version)} characters, where at most {LONGEST_VERSION} are taken: "
            f"{masked(version)[:40]!r}…"
        )
    return version


def end(running: Running) -> None:
    """End a server that was started here, and wait until its port is free."""
    if running.process is not None and running.port is not None:
        running.process.stop()
        wait_until_free(running.port)
