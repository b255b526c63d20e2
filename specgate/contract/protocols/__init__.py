"""The door for plug-ins: what a back end, a gate and a report implement.

    engines.py       Backend and Engine; OpenRequest in, EngineFacts and Decoded out; block_marker for the profiler
    capabilities.py  what an engine or a back end may be able to do besides, for single commands and gates
    found_servers.py what answers at a URL, and back ends that find it out
    judges.py        Gate and what it may declare besides, and ContrastGate for one run beside another
    renderers.py     Report, and what it may be besides; View for what is made of several stored runs
    sources.py       PairSource and Profiler: pairs by name, and what looks at an engine from outside
    option_values.py values of back-end options that several back ends read alike

From `specgate.redaction` come `remember`, by which a plug-in names a credential that it holds (it is masked from
then on), and what shows foreign text without credentials (`masked`), without what a terminal would obey (`visible`), or
without either (`cleaned`).

Everything named in `__all__` is stable. An author needs nothing of specgate but the public rooms: `specgate.errors`,
`specgate.redaction`, `specgate.contract` (the nouns), this one, `specgate.files` and `specgate.analysis` (samples to
figures); engines and gates may also use `specgate.sampling`, engines
`specgate.checkpoints` (pairs on disk) and `specgate.machine`. The built-in engines,
gates and reports import nothing else either.

Entry-point groups: `specgate.backends`, `specgate.gates`, `specgate.reports`, and for what is made of several stored
runs `specgate.contrast_gates`, `specgate.views`; for pairs by name `specgate.pairs`, for what looks
at an engine from outside `specgate.profilers`, and `specgate.commands`, whose entry points name click commands. Every
other entry point names an object with the attributes of its protocol. `docs/examples/` has an installable package for
each of the first three.
"""

from specgate.contract.protocols.capabilities import (
    LED,
    AnswersTurns,
    ChecksOptions,
    ChecksSampling,
    DraftsAlong,
    DrawsTexts,
    DrivesAnotherEngine,
    ExplainsLogs,
    ExtendsText,
    FollowsText,
    HasUsualPair,
    IsBitExact,
    MemoryReads,
    OffersLoad,
    OffersSampling,
    RanksAgain,
    RanksTokens,
    ReadsMemory,
    ScoresTokens,
    ScriptedTrace,
    ServesLoad,
    ShowsDistribution,
    ShowsLogits,
    ShowsSpans,
    ShowsStages,
    ShowsTokenLogits,
    StatesDraftOptions,
    StatesLogitOptions,
    StatesProducts,
    SwitchesPrefixCache,
    TunesItself,
    UsesGpus,
)
from specgate.contract.protocols.engines import (
    BLOCK_MARK,
    Activity,
    Availability,
    Backend,
    ChatPrompt,
    Decoded,
    Engine,
    OpenRequest,
    Text,
    block_marker,
)
from specgate.contract.protocols.found_servers import FindsServers, FoundServer, TextOrChat
from specgate.contract.protocols.judges import (
    ChecksRules,
    ContrastGate,
    Counting,
    Gate,
    GrantsNearTies,
    GrantsRounding,
    LimitsMachine,
    MarksLossy,
    NeedsBuilds,
    NeedsEarlierRun,
    RefusesForGood,
    Sequential,
    SetsFloor,
    StatesNeeds,
)
from specgate.contract.protocols.renderers import Combined, Format, Report, Separate, Tabular, View
from specgate.contract.protocols.sources import PairSource, Profiler
from specgate.redaction import cleaned, is_telling, masked, remember, visible

__all__ = [
    "BLOCK_MARK", "LED", "Activity", "AnswersTurns", "Availability", "Backend", "ChatPrompt", "ChecksOptions",
    "ChecksRules", "ChecksSampling", "Combined", "ContrastGate", "Counting", "Decoded", "DraftsAlong", "DrawsTexts",
    "DrivesAnotherEngine", "Engine", "ExplainsLogs", "ExtendsText", "FindsServers", "FollowsText", "Format",
    "FoundServer", "Gate", "GrantsNearTies", "GrantsRounding", "HasUsualPair", "IsBitExact", "LimitsMachine",
    "MarksLossy", "MemoryReads", "NeedsBuilds", "NeedsEarlierRun", "OffersLoad", "OffersSampling", "OpenRequest",
    "PairSource", "Profiler", "RanksAgain", "RanksTokens", "ReadsMemory", "RefusesForGood", "Report", "ScoresTokens",
    "ScriptedTrace", "Separate", "Sequential", "ServesLoad", "SetsFloor", "ShowsDistribution", "ShowsLogits",
    "ShowsSpans", "ShowsStages", "ShowsTokenLogits", "StatesDraftOptions", "StatesLogitOptions", "StatesNeeds",
    "StatesProducts", "SwitchesPrefixCache", "Tabular", "Text", "TextOrChat", "TunesItself", "UsesGpus", "View",
    "block_marker", "cleaned", "is_telling", "masked", "remember", "visible",
]  # fmt: skip
