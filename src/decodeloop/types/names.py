"""The words the parts agree on."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class RequestClass(StrEnum):
    CODE_EDIT = "code_edit"
    CODE_SYNTHESIS = "code_synthesis"
    STRUCTURED_JSON = "structured_json"
    RAG_SUMMARY = "rag_summary"
    SQL = "sql"
    TOOL_CALL = "tool_call"
    SUPPORT_CHAT = "support_chat"
    GENERAL_CHAT = "general_chat"
    CREATIVE_WRITING = "creative_writing"
    TRANSLATION = "translation"


CLASS_ALIASES: Mapping[str, RequestClass] = {
    "edit": RequestClass.CODE_EDIT,
    "copy": RequestClass.CODE_EDIT,
    "code": RequestClass.CODE_SYNTHESIS,
    "json": RequestClass.STRUCTURED_JSON,
    "rag": RequestClass.RAG_SUMMARY,
    "summary": RequestClass.RAG_SUMMARY,
    "tools": RequestClass.TOOL_CALL,
    "support": RequestClass.SUPPORT_CHAT,
    "chat": RequestClass.GENERAL_CHAT,
    "creative": RequestClass.CREATIVE_WRITING,
}


class Reason(StrEnum):
    """Why a sequence's draft has the length that it has."""

    THROUGHPUT = "throughput"
    INTERACTIVE = "interactive"
    PROBE = "probe"
    FIXED = "fixed"
    OFF_USER = "off_user"
    OFF_LOAD = "off_load"
    OFF_ACCEPTANCE = "off_acceptance"
    OFF_COST = "off_cost"
    NO_PROPOSAL = "no_proposal"
    PREFILL = "prefill"
    CAPPED_KV = "capped_kv"
    CAPPED_LIMIT = "capped_limit"
    FORCED = "forced"
    DENIED = "denied"


class Knowledge(IntEnum):
    """What a score for draft position k may depend on (non-anticipation, DSpark appendix A)."""

    PREFIX = 0  # the context and x_<k only
    SELF = 1  # x_k or later tokens too


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"


class SpeculationMode(StrEnum):
    AUTO = "auto"
    OFF = "off"
    FORCE = "force"
