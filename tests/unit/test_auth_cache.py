"""The memory of logins: bounded, short-lived, and without passwords."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth.logins.cache import LoginCache, LoginDigest
from auth.logins.decisions import DecisionCache
from auth.model import AccessAnswer, AccessRequest, Action, LoginRequest, Subject


@dataclass
class Entry:
    expires_at_ns: int


REQUEST = LoginRequest("ada", "c1", "secret", "10.0.0.1", "cn")


class TestDigest:
    def test_the_same_login_has_the_same_key(self) -> None:
        digest = LoginDigest()
        assert digest(REQUEST) == digest(replace(REQUEST))

    @pytest.mark.parametrize("field", ["username", "clientid", "password", "peerhost", "cert_common_name"])
    def test_each_field_that_a_verdict_depends_on_makes_another_also_of_the_same_length(self, field: str) -> None:
        digest = LoginDigest()
        value = getattr(REQUEST, field)
        assert digest(REQUEST) != digest(replace(REQUEST, **{field: f"{value[:-1]}x"}))

    @pytest.mark.parametrize("other", [
        LoginRequest("a", "dac1", "secret", "10.0.0.1", "cn"),
        LoginRequest("adac", "1", "secret", "10.0.0.1", "cn"),
        LoginRequest("ada", "c", "1secret", "10.0.0.1", "cn"),
        LoginRequest("ada", "c1", "secret10", ".0.0.1", "cn"),
        LoginRequest("ada", "c1", "secret", "10.0.0.", "1cn"),
    ])  # fmt: skip
    def test_the_same_texts_split_elsewhere_make_another(self, other: LoginRequest) -> None:
        digest = LoginDigest()
        assert digest(REQUEST) != digest(other)

    def test_another_process_makes_another(self) -> None:
        assert LoginDigest()(REQUEST) != LoginDigest()(REQUEST)

    def test_text_that_is_no_unicode_has_a_key_too(self) -> None:
        assert LoginDigest()(LoginRequest("\ud800", "c"))


class TestLoginCache:
    @settings(deadline=None, max_examples=300)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["put", "put", "get", "get", "drop", "sweep"]),
                st.integers(0, 3),
                st.integers(0, 20),
                st.sampled_from([1, 1, 1, 2, 5]),
            ),
            min_size=10,
            max_size=30,
        ),
        st.integers(0, 4),
    )
    def test_it_keeps_what_was_asked_for_last_within_its_room_and_nothing_that_is_over(
        self, steps: list[tuple[str, int, int, int]], room: int
    ) -> None:
        """Against a plain dictionary in the order of use. A large entry takes the room of several."""
        cache: LoginCache[Entry] = LoginCache(room)
        model: dict[bytes, tuple[Entry, int]] = {}
        evicted = 0
        for now, (what, number, life, weight) in enumerate(steps):
            key = bytes([number])
            before, taken = model.pop(key, (None, 0)) if what != "sweep" else (None, 0)
            match what:
                case "put":
                    cache.put(key, Entry(now + life), now, weight)
                    if life and weight <= room:
                        model[key] = Entry(now + life), weight
                    while sum(each for _, each in model.values()) > room:
                        oldest, _ = model.pop(next(iter(model)))
                        evicted += oldest.expires_at_ns > now
                case "get":
                    found = before if before is not None and before.expires_at_ns > now else None
                    if found is not None:
                        model[key] = found, taken
                    assert cache.get(key, now) == found
                case "drop":
                    cache.drop(key)
                case "sweep":
                    cache.sweep(now)
                    while model and next(iter(model.values()))[0].expires_at_ns <= now:
                        model.pop(next(iter(model)))
            assert list(cache._entries) == list(model)
            assert (len(cache), cache.evicted) == (len(model), evicted)


class TestDecisionCache:
    def request(
        self, topic: str = "a", action: Action = "publish", qos: int = 0, retain: bool = False, **fields: Any
    ) -> AccessRequest:
        return AccessRequest(Subject(username="ada", **fields), action, topic, qos, retain)

    ANSWER = AccessAnswer("allow", b"{}")

    def test_a_decision_lives_as_long_as_the_data(self) -> None:
        cache = DecisionCache(10)
        key = cache.key(self.request())
        assert key is not None
        assert cache.get(key, (1, 1)) is None
        cache.put(key, (1, 1), self.ANSWER)
        assert cache.get(key, (1, 1)) is self.ANSWER
        assert cache.get(key, (1, 2)) is None
        assert cache.get(key, (1, 1)) is None, "it came back with a version that is over"

    @pytest.mark.parametrize("other", [
        {"topic": "b"}, {"action": "subscribe"}, {"qos": 1}, {"retain": True}, {"clientid": "c"},
        {"peerhost": "10.0.0.1"}, {"cert_common_name": "n"}, {"tenant": "t"}, {"groups": frozenset({"g"})},
        {"attributes": {"a": "1"}},
    ])  # fmt: skip
    def test_each_field_that_a_decision_depends_on_is_in_the_key(self, other: dict[str, Any]) -> None:
        assert DecisionCache.key(self.request()) != DecisionCache.key(self.request(**other))

    @pytest.mark.parametrize("large", [
        {"cert_common_name": "n" * 300}, {"tenant": "t" * 300}, {"clientid": "c" * 300}, {"topic": "a" * 300},
        {"groups": frozenset(map(str, range(20)))},
    ])  # fmt: skip
    def test_what_is_large_is_not_remembered(self, large: dict[str, Any]) -> None:
        assert DecisionCache.key(self.request(**large)) is None

    def test_it_is_bounded_in_number_and_in_what_it_takes(self) -> None:
        cache = DecisionCache(3)
        cache.get("", (1, 1))
        for topic in "abcde":
            key = cache.key(self.request(topic))
            assert key is not None
            cache.put(key, (1, 1), self.ANSWER)
        assert len(cache) == 3
        assert cache.key(self.request("x" * 65_535)) is None
