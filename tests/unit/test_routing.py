"""Routes: the first match wins, values are decided as seldom as possible, and what devices send stays in bounds."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import wire
from bridge.message import NO_PROPERTIES, MessageView, Properties
from bridge.routing.filters import Subscription, matches
from bridge.routing.router import RESERVED_FILTER, Resolved, Route, Router
from bridge.routing.topic_rule import RouteError
from bridge.wire import DeadLetterReason, MessageIdKind
from config.errors import ConfigError
from config.settings import RouteSettings
from config.values.topic_filters import covers

patient = settings(deadline=None)  # a shared machine may pause in the middle of an example
TOPIC = "devices/d7/telemetry"
PROPERTIES = Properties(
    user=(("site", "oslo"), ("gateway.message_id", "forged"), ("site", "porto")), content_type="application/json",
    response_topic="replies/d7", correlation_data=b"\x01\xff", payload_format=1, message_expiry=60,
)  # fmt: skip
VIEW = MessageView(TOPIC, 0b0010, PROPERTIES, b'{"id": "d7", "seq": 5}', 1_763_683_200_123, b"gw-0-1:2:3")


def settings_of(**changes: object) -> RouteSettings:
    return RouteSettings.model_validate(
        {"name": "telemetry", "filters": ["devices/+/telemetry"], "topic": "telemetry", **changes}
    )


def route_of(*, reserved_topics: tuple[str, ...] = (), **changes: object) -> Route:
    return Router([settings_of(**changes)], instance="gw", reserved_topics=reserved_topics).routes[0]


def resolve(route: Route, view: MessageView = VIEW) -> Resolved:
    return route.for_message(route.for_topic(view.topic), view)


# --- which route --------------------------------------------------------------------------------------------------
_LEVELS = ("", "a", "b", "$s")
_TOPICS = tuple("/".join(levels) for depth in (1, 2, 3) for levels in product(_LEVELS, repeat=depth) if any(levels))
_FILTER = (
    st.lists(st.sampled_from((*_LEVELS, "+", "+")), min_size=1, max_size=3)
    .map("/".join)
    .flatmap(lambda text: st.sampled_from((text or "+", f"{text}/#", "#")))
)


@patient
@given(st.lists(st.lists(_FILTER, min_size=1, max_size=3), min_size=1, max_size=5))
def test_the_first_route_with_a_matching_filter_wins(filters: list[list[str]]) -> None:
    routes = [settings_of(name=f"r{n}", filters=texts) for n, texts in enumerate(filters)]
    try:
        router = Router(routes, instance="gw")
    except ConfigError as error:
        # Refused only when some route is covered, filter by filter, by those before it.
        before: list[str] = [RESERVED_FILTER]
        shadowed = []
        for route in routes:
            shadowed.append(all(any(covers(wide, text) for wide in before) for text in route.filters))
            before += route.filters
        assert any(shadowed), error  # noqa: PT017 - a refusal is one of two right answers here
        return
    for topic in _TOPICS:
        expected = next((r.name for r in routes if any(matches(text, topic) for text in r.filters)), None)
        route = router.match(topic)
        assert (route and route.name) == expected, f"{filters} on {topic!r}"
        if expected is not None:
            subscribed = any(matches(sub.filter, topic) for sub in router.covers[""].subscriptions)
            assert subscribed, f"{topic!r} is routed but not subscribed"


def test_the_gateways_own_messages_are_no_routes() -> None:
    router = Router([settings_of(filters=["#"])], instance="gw")
    assert router.match("gateways/gw/status") is None
    assert router.match("gateways") is None
    assert router.match("gatewaysx/gw") is router.routes[0]
    with pytest.raises(ConfigError, match=r"'telemetry' can never match.*reserved for the gateways"):
        Router([settings_of(filters=["gateways/+/status"])], instance="gw")


def test_a_route_that_can_never_match_is_refused_and_a_filter_that_cannot_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"'late' can never match.*'devices/\+/telemetry' behind 'devices/#' \(route 'early'\)"
    ):
        Router([settings_of(name="early", filters=["devices/#"]), settings_of(name="late")], instance="gw")
    early = settings_of(name="early", filters=["a/#"], qos=0)
    router = Router([early, settings_of(name="late", filters=["a/b", "c"], qos=2)], instance="gw")
    assert len(router.warnings) == 1
    assert "'late' has filters that can never match: 'a/b' behind 'a/#' (route 'early')" in router.warnings[0]
    # What can never match asks for no QoS either.
    assert router.covers[""].subscriptions == (Subscription("a/#", 0), Subscription("c", 2))


def test_overlapping_filters_are_told_with_what_arrives_twice() -> None:
    routes = [settings_of(name=name, filters=[text]) for name, text in (("one", "a/+/c"), ("two", "a/b/+"))]
    router = Router(routes, instance="gw")

    assert [word in router.warnings[0] for word in ("'a/+/c'", "'a/b/+'", "'a/b/c'", "'a/+/+'", "twice")] == [True] * 5


def test_filters_that_share_only_the_empty_topic_are_no_overlap_to_tell() -> None:
    router = Router([settings_of(filters=["/#", "+"])], instance="gw")
    assert router.warnings == ()
    assert len(router.covers[""].subscriptions) == 2


def test_no_routes_are_refused() -> None:
    with pytest.raises(ConfigError, match="no routes"):
        Router([], instance="gw")


def test_subscriptions_shared_and_partitioned() -> None:
    one = settings_of(name="one", filters=["a/#", "b/+"], qos=0)
    router = Router([one, settings_of(name="two", filters=["a/x", "b/#", "c"], qos=1)], instance="gw")

    cover = (Subscription("a/#", 0), Subscription("b/#", 1), Subscription("c", 1))
    assert router.covers[""].subscriptions == cover
    shared = tuple(Subscription(f"$share/grp/{text}", qos) for text, qos in cover)
    assert router.subscriptions("shared", 3, share_group="grp") == (shared, shared, shared)
    assert router.subscriptions("partitioned", 2) == ((cover[0], cover[2]), (cover[1],))
    assert router.subscriptions("partitioned", 4) == ((cover[0],), (cover[1],), (cover[2],), ())


def test_a_filter_too_long_behind_its_share_group_is_refused() -> None:
    router = Router([settings_of(filters=["x" * 65_535])], instance="gw")
    assert router.subscriptions("partitioned", 1) == ((Subscription("x" * 65_535, 1),),)
    with pytest.raises(ConfigError, match="this has 65,550"):
        router.subscriptions("shared", 1, share_group="gateway")


# --- how often: what a route needs --------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "fast", "uses_properties"), [
    ({}, True, True),
    ({"metadata_headers": []}, True, False),
    ({"metadata_headers": ["topic", "qos", "retain", "dup", "gateway"]}, True, False),
    ({"key": ""}, True, True),
    ({"headers": {"x": "${topic[1]}"}, "metadata_headers": []}, True, False),
    ({"key": "${topic[1]}", "topic": "t-${topic[2]}"}, True, True),
    ({"device": "${topic[1]}", "key": "${device}", "message_id": "${device}"}, True, True),
    ({"headers": {"trace": "${property.traceparent}"}, "metadata_headers": []}, True, True),
    ({"headers": {"q": "${qos}", "i": "${instance}"}, "metadata_headers": []}, True, False),
    ({"headers": {"x": "${topic}${qos}"}}, False, True),
    ({"headers": {"x": "${payload.x}"}, "metadata_headers": []}, False, False),
    ({"key": "${property.id}", "metadata_headers": []}, False, True),
    ({"topic": "t-${property.id}"}, False, True),
    ({"device": "${payload.id}"}, True, True),  # not used: it may cost nothing
    ({"device": "${payload.id}", "metadata_headers": ["device"]}, False, False),
    ({"message_id": "${payload.seq}"}, False, True),
    ({"metadata_headers": ["message_id"]}, False, False),
    ({"metadata_headers": ["received"]}, False, False),
])  # fmt: skip
def test_a_route_is_fast_while_no_message_has_to_be_looked_into(
    changes: dict[str, object], fast: bool, uses_properties: bool
) -> None:
    route = route_of(**changes)
    assert route.fast is fast
    assert route.uses_properties is uses_properties


_VALUES = ["${topic}", "${topic[1]}", "${qos}", "${property.site}", "${payload.id}", "${device}", "${content_type}"]
_TEMPLATE = st.sampled_from(["const", "${topic[1]}-${qos}", *_VALUES])
_METADATA = st.lists(
    st.sampled_from(["topic", "qos", "retain", "dup", "properties", "gateway", "message_id", "device", "received"]),
    unique=True,
)


@patient
@given(
    st.sampled_from(["telemetry", "t-${topic[1]}", "t-${property.site}"]),
    _TEMPLATE | st.just(""),
    st.dictionaries(st.sampled_from("xyz"), _TEMPLATE),
    _METADATA,
    st.none() | _TEMPLATE,
    st.integers(0, 15).filter(lambda flags: flags & 6 != 6),
    st.sampled_from([PROPERTIES, NO_PROPERTIES, Properties(user=(("site", "oslo"),))]),
)
def test_the_fast_lane_and_the_slow_one_make_the_same_record(
    topic: str,
    key: str,
    headers: dict[str, str],
    metadata: list[str],
    message_id: str | None,
    flags: int,
    properties: Properties,
) -> None:
    route = route_of(
        topic=topic, key=key, headers=headers, metadata_headers=metadata, message_id=message_id, device="${topic[1]}"
    )
    plan = route.for_topic(TOPIC)
    view = MessageView(TOPIC, flags, properties, VIEW.payload, VIEW.received_ms, VIEW.delivery_id)
    try:
        slow = route.for_message(plan, view)
    except RouteError as error:
        assert error.reason == DeadLetterReason.MISSING_VALUE  # noqa: PT017 - a refusal is one of two right answers here
        assert "${property.site}" in topic
        assert properties is NO_PROPERTIES
        return
    assert slow.device == b"d7"
    if route.fast:
        fast = plan.headers(flags) + route.for_properties(properties)
        assert (plan.kafka_topic, plan.key, sorted(fast)) == (slow.kafka_topic, slow.key, sorted(slow.headers))
    if not route.uses_properties:
        assert route.for_message(plan, MessageView(TOPIC, flags, NO_PROPERTIES, VIEW.payload, 0, b"")).key == slow.key
        assert route.for_properties(properties) == []


def test_headers_handed_out_are_not_the_plans_own() -> None:
    route = route_of()
    plan = route.for_topic(TOPIC)
    first = plan.headers(3)
    first.append(("x", b"x"))
    assert plan.headers(3) == [(wire.MQTT_TOPIC, TOPIC.encode()), (wire.MQTT_RETAIN, b"1")]
    resolve(route).headers.clear()
    assert plan.base == [(wire.MQTT_TOPIC, TOPIC.encode())]


# --- headers ------------------------------------------------------------------------------------------------------
def test_the_default_headers_are_the_topic_what_is_set_and_the_properties() -> None:
    headers = resolve(route_of(), MessageView(TOPIC, 0b1011, PROPERTIES)).headers
    assert headers == [
        ("mqtt.topic", TOPIC.encode()), ("mqtt.retain", b"1"), ("mqtt.dup", b"1"), ("mqtt.payload_format", b"1"),
        ("mqtt.content_type", b"application/json"), ("mqtt.response_topic", b"replies/d7"),
        ("mqtt.correlation_data", b"\x01\xff"), ("mqtt.message_expiry", b"60"), ("mqtt.user.site", b"oslo"),
        ("mqtt.user.gateway.message_id", b"forged"), ("mqtt.user.site", b"porto"),
    ]  # fmt: skip
    assert resolve(route_of(), MessageView(TOPIC, 0b0010)).headers == [("mqtt.topic", TOPIC.encode())]


def test_named_headers_are_exactly_those_and_an_empty_list_means_none() -> None:
    assert resolve(route_of(metadata_headers=[])).headers == []
    every = ["topic", "qos", "retain", "dup", "properties", "gateway", "message_id", "device", "received"]
    headers = dict(resolve(route_of(metadata_headers=every, device="${topic[1]}")).headers)
    named = {"mqtt.qos": b"1", "gateway.id": b"gw", "gateway.device": b"d7", "gateway.received_ms": b"1763683200123"}
    named |= {"gateway.message_id": b"gw-0-1:2:3", "gateway.message_id_kind": b"delivery"}
    assert headers.items() >= named.items()
    assert not {"mqtt.retain", "mqtt.dup"} & headers.keys()


@pytest.mark.parametrize(("flags", "expected"), [
    (0b0000, {}), (0b0010, {"mqtt.qos": b"1"}), (0b0100, {"mqtt.qos": b"2"}), (0b0001, {"mqtt.retain": b"1"}),
    (0b1101, {"mqtt.qos": b"2", "mqtt.retain": b"1", "mqtt.dup": b"1"}),
])  # fmt: skip
def test_flags_that_are_zero_are_not_written(flags: int, expected: dict[str, bytes]) -> None:
    assert dict(route_of(metadata_headers=["qos", "retain", "dup"]).for_topic(TOPIC).headers(flags)) == expected


def test_a_device_id_template_writes_the_identity_with_its_kind() -> None:
    route = route_of(device="${topic[1]}", message_id="${device}-${payload.seq}", metadata_headers=[])
    resolved = resolve(route)
    assert (resolved.message_id, resolved.message_id_kind) == (b"d7-5", MessageIdKind.DEVICE)
    assert resolved.headers == [("gateway.message_id", b"d7-5"), ("gateway.message_id_kind", b"device")]


def test_without_its_value_an_identity_is_left_out_and_never_made_up() -> None:
    for metadata in ([], ["message_id"]):
        route = route_of(message_id="${payload.nope}", metadata_headers=metadata)
        resolved = resolve(route)
        assert (resolved.message_id, resolved.message_id_kind, resolved.headers) == (None, None, [])


def test_an_extra_header_without_its_value_is_left_out() -> None:
    route = route_of(
        headers={"a": "${property.nope}", "b": "${payload.nope}", "c": "${property.site}"}, metadata_headers=[]
    )
    assert resolve(route).headers == [("c", b"oslo")]
    by_topic = route_of(filters=["devices/#"], headers={"d": "${topic[5]}"}, metadata_headers=[])
    assert resolve(by_topic).headers == []


@pytest.mark.parametrize("name", ["", "gateway.message_id", "mqtt.topic", "dlq.reason"])
def test_an_extra_header_may_not_take_a_name_of_the_gateways(name: str) -> None:
    with pytest.raises(ConfigError, match="headers"):
        route_of(headers={name: "x"})


# --- keys ---------------------------------------------------------------------------------------------------------
def test_a_missing_key_is_a_record_without_key() -> None:
    route = route_of(key="${payload.nope}")
    assert route.keyed
    assert resolve(route).key is None
    assert route_of(filters=["devices/#"], key="${topic[3]}").for_topic(TOPIC).key is None
    unkeyed = route_of(key="")
    assert not unkeyed.keyed
    assert unkeyed.for_topic(TOPIC).key is None


def test_on_a_tombstone_route_a_missing_key_is_a_dead_letter() -> None:
    slow = route_of(key="${payload.nope}", empty_payload="tombstone")
    with pytest.raises(RouteError, match=r"route 'telemetry', key: \$\{payload.nope\} has no value") as caught:
        resolve(slow)
    assert caught.value.reason == DeadLetterReason.MISSING_VALUE
    assert caught.value.route == "telemetry"
    fast = route_of(filters=["devices/#"], key="${topic[3]}", empty_payload="tombstone")
    with pytest.raises(RouteError, match="key"):
        fast.for_topic(TOPIC)
    assert route_of(empty_payload="tombstone").tombstones


# --- Kafka topics -------------------------------------------------------------------------------------------------
def made(route: Route, device: str) -> str | None:
    return route.for_topic(f"devices/{device}/telemetry").kafka_topic


@pytest.mark.parametrize(
    "device", ["a b", "ä", "__consumer_offsets", "x" * 250, ".", "..", "a\n", "a\0", "$", "dead-letters", "bad"]
)
def test_a_device_cannot_choose_a_topic_that_is_not_allowed(device: str) -> None:
    route = route_of(topic="${topic[1]}", allowed_topics=r"[^b/][^/]*", reserved_topics=("dead-letters",))
    with pytest.raises(RouteError, match="cannot be written to") as caught:
        made(route, device)
    assert caught.value.reason == DeadLetterReason.INVALID_TOPIC
    assert made(route, "good") == "good"


def test_the_allowed_pattern_must_match_the_whole_name() -> None:
    route = route_of(topic="${topic[1]}", allowed_topics="site[0-9]")
    assert made(route, "site1") == "site1"
    for device in ("site12", "xsite1", "Site1"):
        with pytest.raises(RouteError, match="allowed_topics"):
            made(route, device)


def test_a_missing_part_of_the_topic_is_a_dead_letter() -> None:
    with pytest.raises(RouteError, match=r"topic: .* has no value") as caught:
        made(route_of(topic="t-${topic[1]}"), "")
    assert caught.value.reason == DeadLetterReason.MISSING_VALUE
    with pytest.raises(RouteError, match="not JSON"):
        resolve(route_of(topic="t-${payload.id}"), MessageView(TOPIC, payload=b"?"))


def test_a_template_makes_no_more_topics_than_allowed() -> None:
    route = route_of(topic="t-${topic[1]}", max_topics=3)
    assert [made(route, device) for device in "abca"] == ["t-a", "t-b", "t-c", "t-a"]
    with pytest.raises(RouteError, match="max_topics") as caught:
        made(route, "d")
    assert caught.value.reason == DeadLetterReason.TOPIC_LIMIT
    assert made(route, "b") == "t-b"  # those it has go on
    bad = route_of(topic="${topic[1]}", max_topics=1)
    with pytest.raises(RouteError, match="Kafka topic is named"):
        made(bad, "no good")
    assert made(bad, "good") == "good"  # a refused one takes no place


@pytest.mark.parametrize("topic", ["__consumer_offsets", "a b", ".", "x" * 250, "dead-letters"])
def test_a_topic_that_cannot_be_written_to_is_a_bad_setting(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"route 'telemetry', topic"):
        route_of(topic=topic, reserved_topics=("dead-letters",))


def test_topics_named_outright_are_known_before_the_start() -> None:
    topics = {"a": "one", "b": "${instance}-two", "c/+": "${topic[1]}"}
    routes = [settings_of(name=f"r{n}", filters=[text], topic=topics[text]) for n, text in enumerate(topics)]
    router = Router(routes, instance="gw")
    assert router.kafka_topics == {"one", "gw-two"}
    assert router.routes[2].kafka_topic is None


# --- settings that cannot be right --------------------------------------------------------------------------------
@pytest.mark.parametrize(("changes", "says"), [
    ({"key": "${topic[3]}"}, r"key: .*'devices/\+/telemetry' have 3 levels"),
    ({"key": "${topic[-4]}"}, "key: .*3 levels"),
    ({"device": "${topic[3]}"}, "device: .*3 levels"),
    ({"headers": {"h": "${topic[9]}"}}, "headers.h: .*3 levels"),
    ({"filters": ["a/#", "b"], "topic": "${topic[1]}"}, "topic: .*'b' have 1 levels"),
    ({"key": "${device}"}, "key: .*no device setting"),
    ({"device": "${device}"}, "device: .*which is itself"),
    ({"topic": "${topc}"}, r"route 'telemetry', topic: .*did you mean \$\{topic\}"),
    ({"message_id": "${client_id}"}, "message_id: .*does not tell a subscriber"),
])  # fmt: skip
def test_a_template_that_can_never_have_a_value_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        route_of(**changes)
