"""The memory of logins: bounded, short-lived, and without passwords."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth.logins.cache import LoginCache, LoginDigest
from auth.logins.decisions import DecisionCache
from auth.model import AccessAnswer, AccessRequest, LoginRequest, Subject

SECOND = 1_000_000_000


@dataclass
class Entry:
    expires_at_ns: int
    name: str = ""


REQUEST = LoginRequest("ada", "c1", "secret", "10.0.0.1", "cn")


class TestDigest:
    def test_the_same_login_has_the_same_key(self) -> None:
        digest = LoginDigest()
        assert digest(REQUEST) == digest(replace(REQUEST))

    @pytest.mark.parametrize("field", ["username", "clientid", "password", "peerhost", "cert_common_name"])
    def test_each_field_that_a_verdict_depends_on_makes_another(self, field: str) -> None:
        digest = LoginDigest()
        assert digest(REQUEST) != digest(replace(REQUEST, **{field: "other"}))

    @pytest.mark.parametrize("field", ["username", "clientid", "password", "peerhost", "cert_common_name"])
    def test_of_the_same_length_too(self, field: str) -> None:
        digest = LoginDigest()
        value = getattr(REQUEST, field)
        assert digest(REQUEST) != digest(replace(REQUEST, **{field: f"{value[:-1]}x"}))

    @pytest.mark.parametrize(
        "other",
        [
            LoginRequest("a", "dac1", "secret", "10.0.0.1", "cn"),
            LoginRequest("adac", "1", "secret", "10.0.0.1", "cn"),
            LoginRequest("ada", "c", "1secret", "10.0.0.1", "cn"),
            LoginRequest("ada", "c1", "secret10", ".0.0.1", "cn"),
            LoginRequest("ada", "c1", "secret", "10.0.0.", "1cn"),
        ],
    )
    def test_the_same_texts_split_elsewhere_make_another(self, other: LoginRequest) -> None:
        digest = LoginDigest()
        assert digest(REQUEST) != digest(other)

    def test_another_process_makes_another(self) -> None:
        assert LoginDigest()(REQUEST) != LoginDigest()(REQUEST)

    @settings(deadline=None)
    @given(st.tuples(*[st.text(max_size=4)] * 5), st.tuples(*[st.text(max_size=4)] * 5))
    def test_moving_text_from_one_field_to_the_next_makes_another(self, one: Any, other: Any) -> None:
        digest = LoginDigest()
        assert (digest(LoginRequest(*one)) == digest(LoginRequest(*other))) == (one == other)

    def test_text_that_is_no_unicode_has_a_key_too(self) -> None:
        assert LoginDigest()(LoginRequest("\ud800", "c"))


class TestLoginCache:
    def test_an_entry_lives_until_its_time_is_over(self) -> None:
        cache: LoginCache[Entry] = LoginCache(10)
        cache.put(b"a", Entry(5 * SECOND), 0)
        assert cache.get(b"a", 5 * SECOND - 1) is not None
        assert cache.get(b"a", 5 * SECOND) is None
        assert len(cache) == 0

    def test_what_was_not_asked_for_the_longest_makes_room(self) -> None:
        cache: LoginCache[Entry] = LoginCache(3)
        for name in "abc":
            cache.put(name.encode(), Entry(SECOND, name), 0)
        cache.get(b"a", 0)
        cache.put(b"d", Entry(SECOND, "d"), 0)
        assert cache.get(b"b", 0) is None
        assert [name for name in "acd" if cache.get(name.encode(), 0)] == ["a", "c", "d"]
        assert cache.evicted == 1

    def test_without_room_nothing_is_remembered(self) -> None:
        cache: LoginCache[Entry] = LoginCache(0)
        cache.put(b"a", Entry(SECOND), 0)
        assert cache.get(b"a", 0) is None

    def test_sweeping_lets_go_of_what_is_over(self) -> None:
        cache: LoginCache[Entry] = LoginCache(100)
        for number in range(50):
            cache.put(bytes([number]), Entry((number + 1) * SECOND), 0)
        cache.sweep(20 * SECOND)
        assert len(cache) == 30

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.booleans()), max_size=60), st.integers(0, 4))
    def test_it_is_bounded_and_gives_nothing_that_is_over(self, steps: list[Any], entries_max: int) -> None:
        cache: LoginCache[Entry] = LoginCache(entries_max)
        model: dict[bytes, int] = {}
        for now, (number, life, read) in enumerate(steps):
            key = bytes([number])
            if read:
                found = cache.get(key, now)
                if found is not None:
                    assert found.expires_at_ns == model[key] > now
            else:
                model[key] = now + life
                cache.put(key, Entry(now + life), now)
            assert len(cache) <= entries_max

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(["put", "get", "drop", "sweep"]), st.integers(0, 9), st.integers(1, 12))))
    def test_what_is_large_takes_the_room_of_several(self, steps: list[tuple[str, int, int]]) -> None:
        cache: LoginCache[Entry] = LoginCache(10)
        weights: dict[int, int] = {}
        for now_ns, (what, number, weight) in enumerate(steps):
            key = bytes([number])
            if what == "put":
                cache.put(key, Entry(now_ns + 5), now_ns, weight)
                weights[number] = weight
            elif what == "get":
                cache.get(key, now_ns)
            elif what == "drop":
                cache.drop(key)
            else:
                cache.sweep(now_ns)
            there = [one[0] for one in cache._entries]
            assert sum(weights[one] for one in there) == len(cache) + cache._extra <= 10
            if what == "put":
                assert (number in there) == (weight <= 10)


class TestDecisionCache:
    def request(self, topic: str = "a", **fields: Any) -> AccessRequest:
        return AccessRequest(Subject(username="ada", **fields), "publish", topic)

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

    @pytest.mark.parametrize(
        "other",
        [
            {"topic": "b"},
            {"clientid": "c"},
            {"peerhost": "10.0.0.1"},
            {"cert_common_name": "n"},
            {"tenant": "t"},
            {"groups": frozenset({"g"})},
            {"attributes": {"a": "1"}},
        ],
    )
    def test_each_field_that_a_decision_depends_on_is_in_the_key(self, other: dict[str, Any]) -> None:
        assert DecisionCache.key(self.request()) != DecisionCache.key(self.request(**other))

    @pytest.mark.parametrize(
        "large",
        [
            {"cert_common_name": "n" * 300},
            {"tenant": "t" * 300},
            {"clientid": "c" * 300},
            {"topic": "a" * 300},
            {"groups": frozenset(map(str, range(20)))},
        ],
    )
    def test_what_is_large_is_not_remembered(self, large: dict[str, Any]) -> None:
        assert DecisionCache.key(self.request(**large)) is None

    def test_action_qos_and_retain_are_in_the_key(self) -> None:
        base = self.request()
        keys = {
            DecisionCache.key(one)
            for one in (base, replace(base, action="subscribe"), replace(base, qos=1), replace(base, retain=True))
        }
        assert len(keys) == 4

    def test_it_is_bounded_in_number_and_in_what_it_takes(self) -> None:
        cache = DecisionCache(3)
        cache.get("", (1, 1))
        for topic in "abcde":
            key = cache.key(self.request(topic))
            assert key is not None
            cache.put(key, (1, 1), self.ANSWER)
        assert len(cache) == 3
        assert cache.key(self.request("x" * 65_535)) is None
