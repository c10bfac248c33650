"""Tool calls: read however text is cut, never lost where it does not parse, held by a grammar when they are forced."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.gateway import tool_calls
from kvfence.gateway.openai import ChatBody
from kvfence.gateway.pieces import CallPart
from kvfence.gateway.responses import Failure
from kvfence.gateway.tool_calls import CallReader, Calls, plan_calls, template_tools
from kvfence.models.tool_formats import TOOL_FORMATS, tool_format_of

FORMS = {form.name: form for form in TOOL_FORMATS}
NAMES = frozenset({"get_weather", "add"})
CALL = '{"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2]}}'
ADD = '{"name": "add", "arguments": {}}'
LLAMA = CALL.replace("arguments", "parameters")
WEATHER = ("get_weather", {"city": "Köln", "days": [1, 2]})

Read = tuple[str, list[tuple[str, dict]]]


def read(reader: CallReader, pieces: list[str]) -> Read:
    """Read an answer in these pieces. Returns: content, and calls with their arguments."""
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.flush()
    calls: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            calls.setdefault(part.number, [part.name, ""])[1] += part.arguments
    assert list(calls) == list(range(len(calls)))
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [(name, json.loads(arguments)) for name, arguments in calls.values()]


WRITTEN = [
    ("hermes", "plain text", "plain text", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [WEATHER]),
    ("hermes", f"I look.\n<tool_call>{CALL}</tool_call>\n", "I look.", [WEATHER]),
    ("hermes", f"<tool_call>{CALL}</tool_call>\n<tool_call>{ADD}</tool_call>", "", [WEATHER, ("add", {})]),
    ("hermes", f"<tool_call>{CALL}</tool_call> and so", " and so", [WEATHER]),
    ("hermes", f"<tool_call>{CALL}", "", [WEATHER]),
    ("hermes", "<tool_call>{nonsense}</tool_call>!", "<tool_call>{nonsense}</tool_call>!", []),
    ("hermes", '<tool_call>{"name": "get_weather", "argu', '<tool_call>{"name": "get_weather", "argu', []),
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "add", "arguments": 5}</tool_call>', None, []),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"x": NaN}}</tool_call>', None, []),
    ("hermes", "<tool_call>[[[[", None, []),
    ("hermes", "a <tool", "a <tool", []),
    ("hermes", " \n ", " \n ", []),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {ADD}]", "", [WEATHER, ("add", {})]),
    ("mistral", f"[TOOL_CALLS] [{CALL}, oops]", None, []),
    ("granite", f"<|tool_call|>[{CALL}]", "", [WEATHER]),
    ("phi4", f"<|tool_call|>[{CALL}]<|/tool_call|>", "", [WEATHER]),
    ("llama3", LLAMA, "", [WEATHER]),
    ("llama3", f"\n{LLAMA}; {LLAMA}", "", [WEATHER, WEATHER]),
    ("llama3", f"<|python_tag|>{LLAMA}", "", [WEATHER]),
    ("llama3", '{"answer": 5}', '{"answer": 5}', []),
    ("llama3", f"So {LLAMA}", None, []),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), WRITTEN)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_read_however_the_text_is_cut(form, text, content, calls, size) -> None:
    """Whole calls to offered functions are calls; everything else is content, to the last character."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    reader = Calls(NAMES, FORMS[form]).reader()
    assert read(reader, pieces) == (text if content is None else content, calls)
    assert reader.reason == ("tool_calls" if calls else "stop")


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", CALL, "{", "x", " ", "\n", "<", "tool_call>"]), max_size=12
    )
)
def test_nothing_but_white_space_round_calls_is_ever_lost(parts) -> None:
    """Content and calls together hold every character that is neither a mark of a read call nor white space."""
    text = "".join(parts)
    content, calls = read(Calls(NAMES, FORMS["hermes"]).reader(), list(text))
    assert all(call == WEATHER for call in calls)
    letters = "".join(text.split())
    kept = len("".join(content.split())) + len(calls) * len("".join(CALL.split()))
    marks = len(letters) - kept
    assert bool(calls) * len("<tool_call>") <= marks <= len(calls) * len("<tool_call></tool_call>")
    if not calls:
        assert content == text


def test_half_a_character_in_arguments_stays_an_escape() -> None:
    """Arguments that no UTF-8 can hold are still the JSON that was written."""
    text = '<tool_call>{"name": "add", "arguments": {"x": "\\ud800"}}</tool_call>'
    (part,) = Calls(NAMES, FORMS["hermes"]).reader().push(text)
    assert isinstance(part, CallPart)
    assert part.arguments == '{"x": "\\ud800"}'


def chat(**fields) -> ChatBody:
    """A chat with tools."""
    tools = [
        {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "add"}},
    ]
    body = {"model": "toy", "messages": [], "tools": tools, **fields}
    return msgspec.json.decode(json.dumps(body), type=ChatBody)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "$defs": {"City": {"enum": ["Köln", "Bonn"]}},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def planned(**fields) -> Calls:
    """A plan that was not refused."""
    plan = plan_calls(chat(**fields), True, FORMS["hermes"])
    assert isinstance(plan, Calls), plan
    return plan


def test_tools_are_read_as_the_model_writes_them_unless_calls_are_forced() -> None:
    """auto has no grammar; required and a named function have one; none has no reader at all."""
    assert planned().form is FORMS["hermes"]
    assert (planned().grammar, planned(tool_choice="auto").named) == ("", "")
    assert planned(tool_choice="required").grammar
    assert planned(tool_choice=NAMED).named == "get_weather"
    assert plan_calls(chat(tool_choice="none"), True, FORMS["hermes"]) is None
    assert plan_calls(chat(tools=[]), False, None) is None


def test_a_forced_list_holds_references_within_each_schema() -> None:
    """The grammar of required calls resolves a function's own definitions, and the reader reads what it allows."""
    plan = planned(tool_choice="required", parallel_tool_calls=False)
    assert '"#/items/anyOf/0/properties/arguments/$defs/City"' in plan.grammar
    assert '"maxItems":1' in plan.grammar
    assert '"maxItems"' not in planned(tool_choice="required").grammar
    reader = plan.reader()
    assert read(reader, [f"[{CALL}]"]) == ("", [WEATHER])
    assert reader.reason == "tool_calls"
    assert read(plan.reader(), [f"[{CALL}"]) == (f"[{CALL}", [])


def test_a_named_functions_arguments_leave_as_they_come() -> None:
    """The first part has id and name; the parts joined are the answer's text; it ends with stop, as OpenAI's does."""
    reader = planned(tool_choice=NAMED).reader()
    parts = [part for piece in ('{"ci', "", 'ty": "Bonn"}') for part in reader.push(piece)]
    assert all(isinstance(part, CallPart) and part.number == 0 for part in parts)
    assert [(bool(part.id), part.name) for part in parts] == [(True, "get_weather"), (False, "")]
    assert "".join(part.arguments for part in parts) == '{"city": "Bonn"}'
    assert (reader.flush(), reader.reason) == ([], "stop")


@pytest.mark.parametrize(
    ("fields", "takes_tools", "form", "param"),
    [
        ({}, False, None, "tools"),
        ({}, True, None, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, True, FORMS["hermes"], "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, True, FORMS["hermes"], "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, True, FORMS["hermes"], "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(129)]}, True, None, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
            True,
            FORMS["hermes"],
            "tools[0].function.parameters",
        ),
        (
            {
                "tools": [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            True,
            FORMS["hermes"],
            "tools[0].function.parameters",
        ),
    ],
)
def test_what_cannot_be_called_is_named(fields, takes_tools, form, param) -> None:
    """A template without tools, an unknown way to write calls and a wrong tool are each a 400 with its field."""
    failure = plan_calls(chat(**fields), takes_tools, form)
    assert isinstance(failure, Failure)
    assert (failure.status, failure.param) == (400, param)


def test_many_costly_tools_cost_no_more_than_one_schema(monkeypatch) -> None:
    """What is too large together is refused before many of them are looked at alone."""
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(200)}}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(128)]
    looked_at: list[bytes] = []
    real = tool_calls.grammar_of_schema
    monkeypatch.setattr(tool_calls, "grammar_of_schema", lambda text: (looked_at.append(text), real(text))[1])
    failure = plan_calls(chat(tools=tools, tool_choice="required"), True, None)
    assert isinstance(failure, Failure)
    assert failure.param == "tools"
    assert len(looked_at) <= 1 + tool_calls.LOOKED_AT_MAX


def test_a_model_whose_way_is_unknown_can_still_be_made_to_call() -> None:
    """Forced calls need no way of the model's own."""
    assert isinstance(plan_calls(chat(tool_choice="required"), True, None), Calls)


def test_templates_see_tools_whole() -> None:
    """Name, description and schema are given; a function without parameters takes an empty object."""
    first, second = template_tools(chat().tools)
    assert first["function"]["parameters"] == SCHEMA
    assert second["function"] == {
        "name": "add",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("return a json object within <tool_call></tool_call> tags", "hermes"),
        ("<tool_call>\n<function=example>", None),
        ("<tool_call>{name}\n<arg_key>", None),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3"),
        ("[TOOL_CALLS] [", "mistral"),
        ("[TOOL_CALLS]name[ARGS]", None),
        ("<|tool_call|>", "granite"),
        ("<|tool_call|>...<|/tool_call|>", "phi4"),
        ("{{ tools }}", None),
    ],
)
def test_the_way_is_found_by_what_the_template_says(template, name) -> None:
    """Each known way by its marks; others of similar marks are not mistaken for it."""
    form = tool_format_of(template)
    assert (form.name if form else None) == name
