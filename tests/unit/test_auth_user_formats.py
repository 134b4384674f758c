"""Files of users: what is in them arrives, what is wrong is said with its line, and no password is ever shown."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth import passwords
from auth.errors import ImportFormatError
from auth.model import Tenant
from auth.store.records import User
from auth.store.user_entries import HashForm
from auth.store.user_formats import UserFile, export_lines, parse_users, read_users

SALTED = HashForm("sha256", "suffix")
HASH = hashlib.sha256(b"secretpepper").hexdigest()
NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
ATTRIBUTE = st.text("abcXYZ019_-", min_size=1, max_size=10).filter(lambda name: name not in {"tenant", "groups"})
GROUP = st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc"], exclude_characters="\0,"), min_size=1, max_size=8)
# EMQX writes it where there is none: as a group or the value of an attribute it is refused.
GROUP, VALUE = (words.filter(lambda word: word != "undefined") for words in (GROUP, NAME | st.just("")))


def read(text: str | bytes, form: HashForm = HashForm(), **how: Any) -> UserFile:  # noqa: B008 - frozen
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return parse_users(data, "users", form, **how)


def fails(text: str | bytes, form: HashForm = HashForm()) -> str:  # noqa: B008 - frozen
    with pytest.raises(ImportFormatError) as failed:
        read(text, form)
    return str(failed.value)


class TestEmqxCsv:
    def test_hashes(self) -> None:
        text = (
            f"user_id,password_hash,salt,is_superuser\r\nann,{HASH},pepper,true\r\nbob,{HASH},pepper,false\r\n,,,\r\n"
        )
        ann, bob = read(text, SALTED).entries
        assert (ann.user.kind, ann.user.identity, ann.user.is_superuser, ann.plain) == ("username", "ann", True, None)
        assert not bob.user.is_superuser
        assert passwords.matches(passwords.parse(ann.user.password), "secret", {})
        assert not passwords.matches(passwords.parse(ann.user.password), "secretpepper", {})

    def test_plain(self) -> None:
        (ann,) = read("user_id,password,is_superuser\nann,se cret,\n").entries
        assert (ann.plain, ann.user.password, ann.user.is_superuser) == ("se cret", "", False)
        assert "se cret" not in repr(ann)

    def test_the_column_says_the_kind_and_user_id_is_what_the_caller_says(self) -> None:
        assert read("clientid,password\nc,x\n").entries[0].user.kind == "clientid"
        assert read("user_id,password\nc,x\n", kind="clientid").entries[0].user.kind == "clientid"

    def test_all_columns(self) -> None:
        stored = passwords.hash_argon2id("x", passwords.Argon2Cost(8, 1))
        text = (
            "username,password_hash,tenant,groups,attributes,disabled,expires_at\n"
            f'ann,"{stored}",acme,"b,a","{{""site"": ""berlin""}}",true,2027-01-31T00:00:00Z\n'
        )
        (ann,) = read(text).entries
        assert ann.user.password == stored
        assert replace(ann.user, password="") == User(
            "username", "ann", "", "acme", frozenset({"a", "b"}), {"site": "berlin"}, disabled=True,
            expires_at_s=1_801_353_600,
        )  # fmt: skip

    def test_a_byte_order_mark_and_blank_lines_are_no_matter(self) -> None:
        assert len(read(b"\xef\xbb\xbfuser_id,password\n\na,b\n\n").entries) == 1

    def test_a_quoted_name_may_span_lines_and_the_next_error_has_the_right_line(self) -> None:
        assert read('user_id,password\n"a\nb",x\n').entries[0].user.identity == "a\nb"
        assert "line 4" in fails('user_id,password\n"a\nb",x\n,y\n')

    def test_an_emptied_file_is_no_file_without_users(self) -> None:
        for text in ("", " \n"):
            with pytest.raises(ImportFormatError, match="is empty"):
                read(text)

    @pytest.mark.parametrize("algorithm", ["md5", "sha", "sha256", "sha512", "pbkdf2", "bcrypt"])
    def test_a_hash_of_another_kind_than_said_is_refused(self, algorithm: str) -> None:
        assert "column password_hash" in fails("user_id,password_hash\nann,hunter2\n", HashForm(algorithm))

    def test_pbkdf2_of_emqx(self) -> None:
        made = hashlib.pbkdf2_hmac("sha512", b"secret", b"pepper", 10).hex()
        form = HashForm("pbkdf2", pbkdf2_digest="sha512", pbkdf2_iterations=10)
        (ann,) = read(f"user_id,password_hash,salt\nann,{made},pepper\n", form).entries
        assert passwords.matches(passwords.parse(ann.user.password), "secret", {})


class TestEmqxJson:
    def test_a_list_of_users(self) -> None:
        text = json.dumps(
            [
                {"user_id": "ann", "password_hash": HASH, "salt": "pepper", "is_superuser": True},
                {"user_id": "bob", "password": "x"},
            ],
            indent=2,
        )
        ann, bob = read(text, SALTED).entries
        assert ann.user.is_superuser
        assert bob.plain == "x"
        assert (ann.line, bob.line) == (2, 8)

    def test_an_empty_list(self) -> None:
        assert read("[]").entries == read(" [ ] ").entries == []
        assert read("user_id,password\n").entries == []


class TestExport:
    @given(
        users=st.lists(
            st.builds(
                User,
                kind=st.sampled_from(["username", "clientid"]),
                identity=NAME,
                password=st.sampled_from(
                    ["", passwords.hash_device_secret("x", b"k" * 32), "$2b$04$" + "a" * 53, passwords.plain_text("p")]
                ),
                tenant=st.sampled_from(["", "acme"]),
                groups=st.frozensets(GROUP, max_size=3),
                attributes=st.dictionaries(ATTRIBUTE, VALUE, max_size=3),
                is_superuser=st.booleans(),
                disabled=st.booleans(),
                expires_at_s=st.none() | st.integers(0, 1 << 52),
            ),
            max_size=5,
            unique_by=lambda user: (user.kind, user.identity),
        ),
        tenants=st.lists(
            st.builds(
                Tenant, name=st.sampled_from(["acme", "b", "c"]), enabled=st.booleans(),
                logins_per_second=st.none() | st.integers(0, 1 << 50), users_max=st.none() | st.integers(0, 1 << 50),
                attributes=st.dictionaries(ATTRIBUTE, VALUE, max_size=2),
            ),
            max_size=3,
            unique_by=lambda tenant: tenant.name,
        ),
    )  # fmt: skip
    def test_all_of_it_comes_back(self, users: list[User], tenants: list[Tenant]) -> None:
        keys = {passwords.device_key_id(b"k" * 32): b"k" * 32}
        file = read("".join(f"{line}\n" for line in export_lines(keys, tenants, users)))
        assert [entry.user for entry in file.entries] == users
        assert file.tenants == tenants
        assert file.device_keys == keys

    def test_a_single_line_without_header_is_a_user(self) -> None:
        assert read('{"username": "ann", "password": "x"}').entries[0].plain == "x"


@pytest.mark.parametrize(("text", "said"), [
    (b"user_id,password\nann,\xff\n", "line 2: this is not UTF-8"),
    ("user_id,passwort\nann,hunter2\n", "line 1, column 2: its name is none"),
    ("hunter2,ann\nhunter2,bob\n", "line 1, column 1"),
    ("user_id,password\nann\n", "line 2: 1 fields stand under 2 columns"),
    ("user_id,password\nann,hunter2\nbob,hunter2,x\n", "line 3: 3 fields"),
    ("user_id,password\n,hunter2\n", "line 2, column user_id"),
    ("user_id,username,password\na,b,hunter2\n", "line 2, column username"),
    ("user_id,password_hash\nann,hunter2\n", "line 2, column password_hash"),
    ("user_id,password,password_hash\nann,hunter2,hunter2\n", "not both"),
    ("user_id,password,is_superuser\nann,hunter2,maybe\n", "column is_superuser"),
    ("user_id,password\nann,hunter2\nann,hunter2\n", "line 3, column username: the same user is on line 2"),
    ("user_id,password,password\nann,hunter2,x\n", "line 1: a column is there twice"),
    ('user_id,password\nann,"hunter2\n', "no CSV"),
    ("user_id,password\na\0b,hunter2\n", "null"),
    ("user_id,password,expires_at\na,hunter2,tomorrow\n", "column expires_at"),
    ("user_id,password,expires_at\na,hunter2,30d\n", "column expires_at"),
    ("user_id,password,attributes\na,hunter2,hunter2\n", "column attributes"),
    ("user_id,password,tenant\na,hunter2,x/y\n", "column tenant"),
    ("address,password\n10.0.0.1,hunter2\n", "has no password"),
    ("address\nplanet mars\n", "column address"),
    ('[\n{"user_id": "a", "password": "hunter2"},\n{"user_id": 5, "password": "hunter2"}]', "line 3, column user_id"),
    ('[{"user_id": "a", "password": "hunter2"},', "line 1"),
    ('[{"user_id": "a"} {"user_id": "b"}]', "comma"),
    ('[{"user_id": "a"}] x', "behind the end"),
    ('[{"user_id": "a", "user_id": "b"}]', "column user_id: it is there twice"),
    ('[{"user_id": "a"},{"user_id": "a"}]', "the same user is on line 1"),
    ("[5]", "is a JSON object"),
    ("[" * 100_000, "line 1"),
    ('[{"user_id": "a", "expires_at": ' + "9" * 5000 + "}]", "line 1"),
    ('[{"user_id": "\\ud800"}]', "column user_id"),
    ('[{"user_id": "a", "password": "hunter2\\ud800"}]', "column password"),
    ('[{"user_id": "a", "attributes": {"x": 5}}]', "column attributes"),
    ('[{"user_id": "a", "groups": "x", "is_superuser": 1}]', "column is_superuser"),
    ('[{"user_id": "a", "password": ""}]', "column password"),
    ('{"format": "something else"}', "no file of users"),
    ('{"format": "mqtt-kafka-gateway users", "version": 99}', "version 1 alone"),
    ('{"format": "mqtt-kafka-gateway users", "version": 1, "device_keys": {"00000000": "hunter2"}}', "damaged"),
    (f'{{"format": "mqtt-kafka-gateway users", "version": 1, "device_keys": {{"00000000": "{"ab" * 32}"}}}}',
        "not the"),
    ('{"format": "mqtt-kafka-gateway users", "version": 1, "x": 1}', "column x"),
    ('{"username": "a"} {"username": "b"}', "more than one"),
    ('\n\n{"username": "a", "tenant": {"name": "x"}}', "line 3, column tenant"),
    ('{"tenant": {"name": "x", "color": "red"}}', "tenant.color"),
    ('{"tenant": {"name": "x", "users_max": "5"}}', "tenant.users_max"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_without_the_password(text: str | bytes, said: str) -> None:
    message = fails(text)
    assert said in message
    assert message.startswith("users, line ")
    assert "hunter2" not in message


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for prefix in (b"", b"user_id,password\n", b"[", b"{"):
        try:
            parse_users(prefix + data, "users", HashForm())
        except ImportFormatError:
            continue


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ImportFormatError, match="cannot be read: No such file"):
        read_users(tmp_path / "none", HashForm())


def test_a_huge_name_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user_id,password\n" + "x" * 256 + ",p\n")
    assert len(read_users(path, HashForm()).entries[0].user.identity) == 256
    path.write_text("user_id,password\n" + "x" * 257 + ",p\n")
    with pytest.raises(ImportFormatError, match="256 is the most"):
        read_users(path, HashForm())
