"""The fields around `messages`: what a template sees of them, where an open answer ends, and when rendering stops."""

from __future__ import annotations

import httpx
import pytest

from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import FakeEngine, echo_prompt, running_server
from pagefleet_engine.testing import ByteTokenizer
from pagefleet_engine.text.chat import ChatTemplate
from tests.engine.server.scripted import CHAT

SOURCE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


class TemplateTokenizer(ByteTokenizer):
    """With a real template."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.template_source = source
        self._template = ChatTemplate(source, special_tokens={"bos_token": "<s>"})

    def apply_chat_template(self, messages, **more) -> str:
        return self._template.render(messages, **more)


async def send(source: str = SOURCE, path: str = CHAT, limits: Limits | None = None, **fields) -> tuple[int, str]:
    """Status, and the prompt that the model got or the message."""
    engine = FakeEngine(echo_prompt, max_model_len=2_048)
    engine.tokenizer = TemplateTokenizer(source)
    async with running_server(engine, limits=limits) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post(path, json=fields)
    if reply.status_code != 200:
        return reply.status_code, reply.json()["error"]["message"]
    ids = reply.json()["tokens"] if path == "/tokenize" else engine.prompts[0]
    return 200, bytes(ids).decode()


USER = [{"role": "user", "content": "hi"}]
OPEN = [*USER, {"role": "assistant", "content": "I think "}]
PROMPTS = {
    "nothing asked for": ({"messages": USER}, "<s><user>hi<end>\n<assistant>"),
    "a variable that the template knows": (
        {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}},
        "<s><user>hi<end>\n<assistant><think></think>",
    ),
    "one that it does not know": (
        {"messages": USER, "chat_template_kwargs": {"x": "{{ 7*7 }}", "y": 1, "z": None}},
        "<s><user>hi<end>\n<assistant>",
    ),
    "an answer that goes on, to its last space": (
        {"messages": OPEN, "continue_final_message": True},
        "<s><user>hi<end>\n<assistant>I think ",
    ),
    "an answer that holds the mark of its own end": (
        {"messages": [*USER, {"role": "assistant", "content": "\ufdd0a\ufdd0\ufdd0"}], "continue_final_message": True},
        "<s><user>hi<end>\n<assistant>\ufdd0a\ufdd0\ufdd0",
    ),
    "an answer that goes on, beside a variable": (
        {"messages": OPEN, "continue_final_message": True, "chat_template_kwargs": {"enable_thinking": True}},
        "<s><user>hi<end>\n<assistant>I think ",
    ),
}


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_prompts(path):
    found = {sentence: await send(path=path, **fields) for sentence, (fields, _) in PROMPTS.items()}
    assert found == {sentence: (200, prompt) for sentence, (_, prompt) in PROMPTS.items()}


NOT_LAST = (
    "continue_final_message: the last message must be the assistant's, with a text and without calls",
    {"continue_final_message": True},
)


def variables(**given) -> dict:
    return {"chat_template_kwargs": given}


OWN = "has a meaning of its own here: leave it out"
REFUSED = {
    "no object": ("chat_template_kwargs: must be an object", {"chat_template_kwargs": [1]}),
    "a list": ("chat_template_kwargs.a: must be a string, a number, a boolean or null", variables(a=[1])),
    "an object": ("chat_template_kwargs.a: must be a string, a number, a boolean or null", variables(a={"b": 1})),
    "too many": (
        "chat_template_kwargs: has 17 entries; at most 16 are served",
        variables(**{f"a{i}": i for i in range(17)}),
    ),
    "a long one": (
        "chat_template_kwargs.a: has 1025 characters; at most 1024 are served",
        variables(a="x" * 1_025),
    ),
    "no name": ("chat_template_kwargs: 'a b' is no name: 1 to 64 letters, digits and '_'", variables(**{"a b": 1})),
    "a hidden name": (
        "chat_template_kwargs: '__class__' is no name: 1 to 64 letters, digits and '_'",
        variables(__class__=1),
    ),
    "CVE-2025-62426: a template": (f"chat_template_kwargs.chat_template: {OWN}", variables(chat_template="{{ 7*7 }}")),
    "CVE-2025-62426: whether there is a prompt at all": (
        f"chat_template_kwargs.tokenize: {OWN}",
        variables(tokenize=True),
    ),
    "messages": (f"chat_template_kwargs.messages: {OWN}", variables(messages="x")),
    "a special token": (f"chat_template_kwargs.bos_token: {OWN}", variables(bos_token="x")),
    "a function of Jinja": (f"chat_template_kwargs.range: {OWN}", variables(range=1)),
    "to go on with the client's message": NOT_LAST,
    "to go on with nothing": (NOT_LAST[0], NOT_LAST[1] | {"messages": [*USER, {"role": "assistant", "content": ""}]}),
    "to go on and to begin": (
        "continue_final_message: not together with add_generation_prompt",
        {"messages": OPEN, "continue_final_message": True, "add_generation_prompt": True},
    ),
}


async def test_refused():
    found = {sentence: await send(**{"messages": USER} | fields) for sentence, (_, fields) in REFUSED.items()}
    assert found == {sentence: (400, message) for sentence, (message, _) in REFUSED.items()}


async def test_a_template_that_hides_the_end_of_a_message_cannot_go_on_with_it():
    hiding = "{% for m in messages %}{{ m.role }}{% endfor %}"
    message = "continue_final_message: this model's chat template does not show how a message ends"
    assert await send(hiding, messages=OPEN, continue_final_message=True) == (400, message)


def test_what_the_renderer_calls_something_keeps_its_name():
    template = ChatTemplate(
        "{{ bos_token }}{{ messages[0].content }}{{ range(2) | list }}", special_tokens={"bos_token": "<s>"}
    )
    hostile = {"bos_token": "x", "messages": [{"content": "x"}], "range": "x", "raise_exception": "x"}
    assert template.render([{"content": "hi"}], variables=hostile) == "<s>hi[0, 1]"


LOOP = "{{% for {0} in range(99999) %}}"
ENDLESS = "".join(LOOP.format(name) for name in "ijk") + "{{ i }}" + "{% endfor %}" * 3


def test_rendering_stops_when_its_text_is_long_enough():
    """To its end this one would take years."""
    text = ChatTemplate(ENDLESS, special_tokens={}).render([], longest=1_000)
    assert 1_000 < len(text) < 2_000


async def test_a_template_that_writes_without_end_is_refused_with_the_numbers():
    status, message = await send(ENDLESS, limits=Limits(chars_per_token=1), messages=USER)
    assert status == 400
    assert message.startswith("the prompt is too long: the maximum context length is 2048 tokens, and messages has 20")


def test_cve_2026_5760_a_template_reaches_no_python():
    for source in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append({}) }}",
        "{{ self.__init__.__globals__ }}",
    ):
        with pytest.raises(RequestRefused):
            ChatTemplate(source, special_tokens={}).render([{"role": "user", "content": "hi"}])
