import json
from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.types import ChatPrompt, RequestRefused
from toy_tokenizer import ToyTokenizer

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Počasí <b>teď</b> & "zítra"',
            "parameters": {"type": "object", "properties": {"město": {"type": "string"}}, "required": ["město"]},
        },
    },
)
CALL = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"město": "Brno <&>"}}}
    ],
}
CHATS = {
    "user": [{"role": "user", "content": "Ahoj 👩‍💻"}],
    "system": [{"role": "system", "content": "Buď stručný."}, {"role": "user", "content": " x\n"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ],
    "tool": [
        {"role": "user", "content": "Jak je v Brně?"},
        CALL | {"content": ""},
        {"role": "tool", "content": "déšť", "tool_call_id": "c1"},
        {"role": "tool", "content": "vítr", "tool_call_id": "c1"},
    ],
}

# In the formats of our families, with the constructs that their own templates use.
CHATML_FIRST_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_LIKE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "Functions:" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\nCall with <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.seen and message.role == "user" %}
        {%- set ns.seen = true %}{%- set ns.last = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
GEMMA_LIKE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}{%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate: " ~ message['role']) }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
    {{- (first if loop.first else "") }}{{ message['content'] | trim }}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
LLAMA_LIKE = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%Y") %}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{%- continue %}{%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at once") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
    {%- else %}{{- message['content'] | trim }}{%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- for tool in tools or [] %}{{- tool | tojson(indent=4) }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
TEMPLATES = {"chatml": CHATML_FIRST_SYSTEM, "qwen": QWEN_LIKE, "gemma": GEMMA_LIKE, "llama": LLAMA_LIKE}
TOKENIZER = ToyTokenizer()
TOKENIZER.bos_id = TOKENIZER.control_id("<|im_start|>")


@pytest.fixture(scope="module")
def reference():
    import tokenizers

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()))
    tokenizer.bos_token, tokenizer.eos_token = "<|im_start|>", "<|im_end|>"
    return tokenizer


# transformers drops tools that a template has no place for; what is done here instead is in test_text_parsing.
COMPARED = [(template, chat, ()) for template in TEMPLATES for chat in CHATS if chat != "tool"]
COMPARED += [(template, chat, tools) for template in ("qwen", "llama") for chat in CHATS for tools in ((), TOOLS)]


@pytest.mark.parametrize(("template", "chat", "tools"), COMPARED)
@pytest.mark.parametrize("extra", [{}, {"enable_thinking": False, "date_string": "2026"}], ids=["", "extra"])
def test_renders_what_transformers_renders(reference, template, chat, tools, extra):
    def expected():
        return reference.apply_chat_template(
            CHATS[chat],
            tools=list(tools) or None,
            chat_template=TEMPLATES[template],
            add_generation_prompt=True,
            tokenize=False,
            **extra,
        )

    ours = ChatTemplate(TEMPLATES[template], TOKENIZER)
    prompt = ChatPrompt(tuple(CHATS[chat]), tools=tools, template_kwargs=extra)
    try:
        text = expected()
    except Exception as error:
        with pytest.raises(RequestRefused, match=str(error)):
            ours.render(prompt)
    else:
        assert ours.render(prompt) == text


def test_a_tool_calls_arguments_arrive_as_text_and_render_as_an_object():
    call = json.loads(json.dumps(CALL))
    call["tool_calls"][0]["function"]["arguments"] = json.dumps({"město": "Brno <&>"}, indent=2)
    prompts = [ChatPrompt((*CHATS["user"], message)) for message in (CALL, call)]
    template = ChatTemplate(QWEN_LIKE, TOKENIZER)
    assert template.render(prompts[0]) == template.render(prompts[1])
    assert '"arguments": {"město": "Brno <&>"}' in template.render(prompts[1])


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    template = ChatTemplate(CHATML_FIRST_SYSTEM, TOKENIZER)
    rendered = [template.render(ChatPrompt(({"role": "user", "content": c},))) for c in (parts, "a\nb")]
    assert rendered[0] == rendered[1]


def test_a_year_from_the_clock():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", TOKENIZER, now=lambda: datetime(2026, 11, 29))
    assert template.render(ChatPrompt(())) == "29 Nov 2026"


@pytest.mark.parametrize(
    ("message", "words", "param"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "image_url", "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "text", "messages[0].content[0]"),
        ({"role": "user", "content": 3}, "string or a list", "messages[0].content"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "function", "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "not valid JSON",
            "messages[0].tool_calls[0]",
        ),
        ({"content": "no role"}, "no role", "messages[0]"),
    ],
)
def test_what_cant_be_rendered_is_refused_with_its_place(message, words, param):
    with pytest.raises(RequestRefused, match=words) as refusal:
        ChatTemplate(CHATML_FIRST_SYSTEM, TOKENIZER).render(ChatPrompt((message,)))
    assert (refusal.value.status, refusal.value.param) == (400, param)


@pytest.mark.parametrize("source", [None, "{% if %}"])
def test_without_a_usable_template_the_refusal_names_the_way_out(source):
    with pytest.raises(RequestRefused, match="/v1/completions"):
        ChatTemplate(source, TOKENIZER).render(ChatPrompt(tuple(CHATS["user"])))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(1000000) %}x{% endfor %}",
        "{{ messages[7].role + 'x' }}",
    ],
)
def test_a_template_is_kept_in_its_sandbox(source):
    with pytest.raises(RequestRefused, match="refuses the messages"):
        ChatTemplate(source, TOKENIZER).render(ChatPrompt(tuple(CHATS["user"])))


def test_template_kwargs_may_not_replace_the_messages():
    prompt = ChatPrompt(tuple(CHATS["user"]), template_kwargs={"messages": []})
    with pytest.raises(RequestRefused, match="may not set messages"):
        ChatTemplate(QWEN_LIKE, TOKENIZER).render(prompt)
