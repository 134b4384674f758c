"""Whatever a body holds, EMQX hears a 200 with a result that it knows."""

import json
from typing import Any, cast

import structlog
from hypothesis import given
from hypothesis import strategies as st

from auth.model import AccessAnswer, AccessRequest, LoginAnswer, LoginRequest
from config.settings import AuthSettings
from gateway.auth_service.metrics import AuthMetrics
from gateway.auth_service.server import AuthServer
from gateway.http.connection import Connection
from gateway.http.http1 import Head, Request

_KEYS = ["username", "clientid", "password", "peerhost", "topic", "action", "qos", "retain", "groups", "attr_site", "x"]
_TEXTS = st.text(max_size=30) | st.sampled_from([
    "publish", "subscribe", "undefined", "", "#", "+", "../", "${clientid}", "\0", "\ud800", "' OR 1=1 --",
    "*)(uid=*))",
])  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)
_DOCUMENTS = st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=11).map(lambda one: json.dumps(one).encode())
_BODIES = st.binary(max_size=200) | _DOCUMENTS | st.none()
_TYPES = st.sampled_from([b"application/json", b"application/x-www-form-urlencoded"]) | st.binary(max_size=30)


class Decisions:
    """Lets all in, and sees to it that what it is asked can be stored and sent on."""

    def login_at_once(self, request: LoginRequest) -> LoginAnswer:
        for text in (request.username, request.clientid, request.password, request.peerhost, request.cert_common_name):
            assert "\0" not in text
            text.encode()
        return LoginAnswer("allow", b'{"result":"allow"}')

    def authorise(self, request: AccessRequest) -> AccessAnswer:
        assert request.action in ("publish", "subscribe")
        assert request.qos in (0, 1, 2)
        assert request.topic
        for text in (request.topic, request.subject.username, *request.subject.groups, *request.subject.attributes):
            assert "\0" not in text
            text.encode()
        return AccessAnswer("allow", b'{"result":"allow"}')


def server() -> AuthServer:
    settings = AuthSettings(client_attributes=("site",))
    return AuthServer(settings, cast("Any", Decisions()), AuthMetrics(settings))


SERVER = server()


@given(st.sampled_from([b"/authn", b"/authz", b"/authn?a=b"]), _TYPES, _BODIES)
def test_any_body_is_answered_in_words_that_emqx_knows(target: bytes, content_type: bytes, body: bytes | None) -> None:
    head = Head(b"POST", target, len(body or b""), True, content_type, b"", {})
    with structlog.testing.capture_logs() as lines:
        answer = SERVER.respond(cast("Connection", object()), Request(head, body))
    first, _, rest = answer.partition(b"\r\n")
    assert first == b"HTTP/1.1 200 OK"
    fields, _, sent = rest.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in fields
    assert int(fields.rpartition(b"content-length: ")[2]) == len(sent)
    assert json.loads(sent)["result"] in ("allow", "deny")
    assert all(line["event"] == "auth_request_unreadable" for line in lines), lines
    assert bool(lines) == (json.loads(sent)["result"] == "deny")
