import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import Answer
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.engine.text.parsing import Parsing
from decodeloop.types import ChatPrompt, GrammarSpec, Request, RequestRefused, SamplingParams
from test_text_chat import CALL, CHATML_FIRST_SYSTEM, GEMMA_LIKE, LLAMA_LIKE, QWEN_LIKE
from tool_texts import PIECES
from toy_tokenizer import CONTROL, ToyTokenizer

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Brno", "Plzeň"]}, "days": {"$ref": "#/$defs/d"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"d": {"type": "integer", "minimum": 1, "maximum": 9}},
}
TOOLS = (
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "čas"}},
)
QWEN_THINKING = QWEN_LIKE.replace(
    "{%- if enable_thinking is defined", "{%- if opened %}{{- '<think>\\n' }}{%- elif enable_thinking is defined"
)
TEMPLATES = {"chatml": CHATML_FIRST_SYSTEM, "qwen": QWEN_THINKING, "gemma": GEMMA_LIKE, "llama": LLAMA_LIKE}
FAMILIES = {"chatml": "llama", "qwen": "qwen3", "gemma": "gemma3", "llama": "llama"}
CONTROLS = (*CONTROL, "<tool_call>", "</tool_call>")
USER = ({"role": "user", "content": "Jak bude v Brně? <think>"},)


def parsing_of(template, control=CONTROL):
    tokenizer = ToyTokenizer(("tool", "_call", "</", "žluť", '{"name', '": "'), control)
    tokenizer.bos_id = tokenizer.control_id("<|im_start|>")
    chat = ChatTemplate(TEMPLATES[template], tokenizer, family=FAMILIES[template])
    return tokenizer, chat, Parsing(tokenizer, chat)


def request(tools=TOOLS, choice="auto", *, grammar=None, stop=(), parallel=True, prompt=None, **kwargs):
    chat = ChatPrompt(USER, tools=tools, tool_choice=choice, parallel_tool_calls=parallel, template_kwargs=kwargs)
    params = SamplingParams(grammar=grammar, stop=stop)
    return Request(id="r1", model="m", prompt=chat if prompt is None else prompt, params=params, seed=0)


def named(name):
    return {"type": "function", "function": {"name": name}}


def run(output, tokens):
    """What a client adds up, and the stop string."""
    content, reasoning, calls, stopped = "", "", {}, None
    for token in [*tokens, None]:
        delta = output.finish() if token is None else output.push(token)
        content, reasoning = content + delta.text, reasoning + delta.reasoning
        for call in delta.tool_calls:
            calls.setdefault(call.index, [call.id, call.name, ""])[2] += call.arguments
        stopped = stopped or delta.stopped
        if stopped:
            break
    return Answer(content, reasoning, tuple(map(tuple, calls.values()))), stopped


def walk(matcher, rng, tokenizer, length=40):
    """Random allowed tokens up to an end; beyond `length`, whatever closes what is open."""
    tokens = []
    while True:
        text = tokenizer.decode(tokens)
        allowed = np.flatnonzero(matcher.allowed())
        going = [int(token) for token in allowed if token not in tokenizer.eos_ids]
        if len(going) < len(allowed) and (not going or len(tokens) > length or rng.random() < 0.4):
            return tokens
        more = [rng.choice(going)]
        if text.startswith("<think>") and "</think>" not in text and len(tokens) > 15 and 60 in going:
            more = tokenizer.encode("</think>")
        elif len(tokens) > length:
            more = [next((token for token in b'"}],01el:<`n' if token in going), more[0])]
        assert all(matcher.accept(token) for token in more)
        tokens += more
        assert len(tokens) < 3000


@pytest.mark.parametrize("control", [CONTROL, CONTROLS], ids=["text", "control"])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", named("get_weather")], ids=["required", "named"])
@pytest.mark.parametrize("parallel", [True, False])
def test_whatever_a_required_choice_allows_is_read_as_calls_of_the_tools(template, choice, parallel, control):
    """A random walk through the grammar: markers, reasoning, calls, with or without control tokens for markers."""
    tokenizer, _, parsing = parsing_of(template, control)
    asked = request(choice=choice, parallel=parallel)
    imposed = parsing.grammar(asked)
    assert imposed.param == "tools"
    start = GrammarCompiler(tokenizer, shown=parsing.shown).compile(imposed.spec, param=imposed.param)
    for seed in range(6):
        tokens = walk(start.fork(), random.Random(seed), tokenizer)
        answer, _ = run(parsing.opener(asked)(0), tokens)
        assert answer.content == ""
        assert 1 <= len(answer.calls) <= (16 if parallel else 1)
        for place, (call_id, name, arguments) in enumerate(answer.calls):
            assert call_id == f"call-r1-0-{place}"
            assert name in (["get_weather", "čas"] if choice == "required" else ["get_weather"])
            schema = WEATHER if name == "get_weather" else {"type": "object"}
            jsonschema.validate(json.loads(arguments), schema)


STRICT = tuple({**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS[:1]) + TOOLS[1:]


@pytest.mark.parametrize("template", ["chatml", "qwen"])
def test_strict_tools_leave_text_free_and_constrain_calls(template):
    tokenizer, chat, parsing = parsing_of(template)
    asked = request(STRICT)
    imposed = parsing.grammar(asked)
    start = GrammarCompiler(tokenizer, shown=parsing.shown).compile(imposed.spec, param=imposed.param)

    def follows(text):
        matcher = start.fork()
        return all(matcher.accept(token) for token in text.encode()) and bool(matcher.allowed()[min(tokenizer.eos_ids)])

    right, wrong = ('{"city": "Brno", "days": 3}', '{"city": "Praha", "days": 3}')
    assert follows("Nic <tool_ca nevolám.")
    assert follows(f"Ano: {chat.form.write([('get_weather', right)])}\n{chat.form.write([('čas', wrong)])} Tak.")
    assert not follows(chat.form.write([("get_weather", wrong)]))
    assert not follows("<tool_call>nic")
    assert not follows(chat.form.write([("neznámá", right)]))
    text = "Ano. " + chat.form.write([("get_weather", right)])
    output, streamed = parsing.opener(asked)(0), ""
    for token in text[: text.index('"days"')].encode():
        streamed += "".join(call.arguments for call in output.push(token).tool_calls)
    assert streamed == '{"city": "Brno", '


@pytest.mark.parametrize("template", ["chatml", "qwen"])
def test_lenient_tools_constrain_nothing(template):
    _, _, parsing = parsing_of(template)
    assert parsing.grammar(request()) is None
    assert parsing.grammar(request(STRICT, "none")) is None


def test_reasoning_stays_free_before_what_is_imposed():
    tokenizer, _, parsing = parsing_of("qwen")
    compiler = GrammarCompiler(tokenizer, shown=parsing.shown)

    def follows(text, **kwargs):
        asked = request((), grammar=GrammarSpec("json_schema", '{"type": "boolean"}'), **kwargs)
        imposed = parsing.grammar(asked)
        assert imposed.param == "response_format"
        matcher = compiler.compile(imposed.spec)
        done = all(matcher.accept(token) for token in tokenizer.encode(text))
        return done and bool(matcher.allowed()[min(tokenizer.eos_ids)])

    assert follows("true")
    assert follows("<think>\n{}?\n</think>\n\ntrue")
    assert not follows("<think>true")
    assert not follows("no <think></think>true")
    assert follows("\ntak\n</think>true", opened=True)
    assert not follows("true", opened=True)
    assert follows("true", enable_thinking=False)
    assert not follows("<think></think>true", enable_thinking=False)


@pytest.mark.parametrize("template", ["chatml", "gemma", "llama"])
def test_a_model_that_does_not_reason_gets_the_grammar_as_asked(template):
    spec = GrammarSpec("regex", "a+")
    _, _, parsing = parsing_of(template)
    imposed = parsing.grammar(request((), grammar=spec))
    assert (imposed.spec, imposed.param) == (spec, "structured_outputs")
    imposed = parsing.grammar(request(prompt="text", grammar=spec))
    assert (imposed.spec, imposed.param) == (spec, "structured_outputs")
    assert parsing.grammar(request()) is None
    assert parsing.grammar(request(choice="none")) is None


@pytest.mark.parametrize(
    ("choice", "tools", "words"),
    [
        (named("neznámá"), TOOLS, "'neznámá', but the request offers get_weather, čas"),
        ("required", (), "needs tools"),
        ("sometimes", TOOLS, "'none', 'auto', 'required'"),
        ({"type": "function"}, TOOLS, "'none', 'auto', 'required'"),
    ],
)
def test_an_impossible_tool_choice_is_refused(choice, tools, words):
    _, _, parsing = parsing_of("qwen")
    with pytest.raises(RequestRefused, match=words) as refusal:
        parsing.grammar(request(tools, choice))
    assert refusal.value.param == "tool_choice"


def test_a_tools_unenforceable_schema_is_blamed_on_tools():
    tokenizer, _, parsing = parsing_of("qwen")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    imposed = parsing.grammar(request((tool,), "required"))
    with pytest.raises(RequestRefused, match="not") as refusal:
        GrammarCompiler(tokenizer).compile(imposed.spec, param=imposed.param)
    assert refusal.value.param == "tools"


def test_reasoning_calls_and_text_come_apart():
    tokenizer, _, parsing = parsing_of("qwen")
    text = '<think>\nžluť\n</think>\n\nTak:\n<tool_call>\n{"name": "čas", "arguments": {}}\n</tool_call>'
    expected = Answer("Tak:", "žluť", (("call-r1-2-0", "čas", "{}"),))
    for tokens in (tokenizer.encode(text), list(text.encode())):
        assert run(parsing.opener(request())(2), tokens) == (expected, None)
    opened = parsing.opener(request(opened=True))(2)
    assert run(opened, tokenizer.encode(text.removeprefix("<think>"))) == (expected, None)


def test_without_tools_or_with_choice_none_calls_are_text():
    tokenizer, _, parsing = parsing_of("chatml")
    text = '<tool_call>[{"name": "čas", "arguments": {}}]</tool_call>'
    for asked in (request(()), request(choice="none"), request(prompt="text")):
        assert run(parsing.opener(asked)(0), tokenizer.encode(text)) == (Answer(text), None)
    assert run(parsing.opener(request())(0), tokenizer.encode(text))[0].calls == (("call-r1-0-0", "čas", "{}"),)


def test_a_control_token_that_marks_calls_is_seen_only_where_tools_are():
    tokenizer, _, parsing = parsing_of("llama")
    tokens = [tokenizer.control_id("<|python_tag|>"), *tokenizer.encode('{"name": "čas", "parameters": {}}')]
    calls = (("call-r1-0-0", "čas", "{}"),)
    assert run(parsing.opener(request())(0), tokens) == (Answer("", "", calls), None)
    assert run(parsing.opener(request(()))(0), tokens)[0].content == '{"name": "čas", "parameters": {}}'


def test_a_stop_string_ends_the_text_that_parsers_see():
    _, _, parsing = parsing_of("qwen")
    text = '<think>a</think>b <tool_call>\n{"name": "čas", "arguments": {}}\n</tool_call>STOP'
    asked = request(stop=("STOP",))
    expected = Answer("b", "a", (("call-r1-0-0", "čas", "{}"),))
    assert run(parsing.opener(asked)(0), list(text.encode())) == (expected, "STOP")
    held = parsing.opener(request(stop=("}}",)))(0)
    assert run(held, list(text.encode())) == (
        Answer('b <tool_call>\n{"name": "čas", "arguments": {', "a"),
        "}}",
    )


@pytest.mark.parametrize("template", ["chatml", "gemma"])
def test_a_template_without_tools_is_told_of_them_as_text(template):
    _, chat, parsing = parsing_of(template)
    messages = ({"role": "user", "content": "?"}, CALL, {"role": "tool", "content": "déšť"})
    text = chat.render(ChatPrompt((*messages, {"role": "tool", "content": "vítr"}), tools=TOOLS))
    assert '{"name": "get_weather", "parameters": {"type": "object"' in text
    example = chat.form.write([("NAME", '{"PARAMETER": VALUE}')])
    assert example in text
    assert chat.form.write([("get_weather", '{"město": "Brno <&>"}')]) in text
    assert "<tool_response>\ndéšť\n</tool_response>\n<tool_response>\nvítr\n</tool_response>" in text
    assert text.count("<start_of_turn>user" if template == "gemma" else "<|im_start|>user") == 2
    silent = chat.render(ChatPrompt(messages, tools=TOOLS, tool_choice="none"))
    assert "get_weather" in silent
    assert example not in silent
    assert parsing.grammar(request(choice="required")) is not None


def test_told_tools_join_a_system_message():
    _, chat, _ = parsing_of("chatml")
    text = chat.render(ChatPrompt(({"role": "system", "content": "Buď stručný."}, *USER), tools=TOOLS))
    assert text.startswith("<|im_start|>system\nBuď stručný.\n\n")
    assert text.count("<|im_start|>system") == 1


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.sampled_from([*PIECES, "<think>", "</think>", '{"name": "čas", "arguments": {}}']), max_size=8),
    st.sampled_from(["", "\n", "}", "</", "ž", "call>"]),
)
def test_how_the_text_is_tokenised_does_not_matter(template, pieces, stop):
    tokenizer, _, parsing = parsing_of(template)
    text, open_output = "".join(pieces), parsing.opener(request(stop=(stop,) if stop else ()))
    byte_by_byte = run(open_output(0), list(text.encode()))
    assert run(open_output(0), tokenizer.encode(text)) == byte_by_byte
