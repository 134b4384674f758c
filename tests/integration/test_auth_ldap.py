"""A directory in particular: names and filters, groups, StartTLS, and what is never asked of it."""

import asyncio
import contextlib
from typing import Any

import pytest

from auth.backends.ldap_messages import element, start_tls_request
from auth.errors import BackendDownError
from auth.model import Allow, Deny, Ignore
from config.errors import ConfigError
from tests.integration.auth_sites import GOOD, LdapNameSite, LdapSearchSite, LdapSite, login
from tests.integration.test_auth_backend_records import HOSTILE
from tests.servers import slapd
from tests.servers.playing import played
from tests.servers.slapd import Slapd
from tests.waiting import until


@pytest.fixture
def by_search(ldap_server: Slapd, unique: str) -> LdapSearchSite:
    return LdapSearchSite(ldap_server, unique)


@pytest.fixture
def by_name(ldap_server: Slapd, unique: str) -> LdapNameSite:
    return LdapNameSite(ldap_server, unique)


@pytest.fixture(params=["by_search", "by_name"])
def either(request: pytest.FixtureRequest) -> LdapSite:
    site: LdapSite = request.getfixturevalue(request.param)
    return site


# Directories compare uid without regard to case and outer spaces (RFC 4517 caseIgnoreMatch): these are lamp there.
SAME_TO_LDAP = {"space behind", "space before"}


@pytest.mark.parametrize("exact", [True, False])
async def test_hostile_names_find_nobody(by_search: LdapSearchSite, exact: bool) -> None:
    await by_search.put_password("lamp")
    async with by_search.running(exact_names=exact) as authenticator:
        for what, name in HOSTILE.items():
            verdict = await login(authenticator, name)
            allowed = what in SAME_TO_LDAP and not exact
            assert isinstance(verdict, Allow if allowed else Ignore), f"{what}: {verdict}"
            assert isinstance(await login(authenticator, "lamp", name), Deny), f"{what} as password"
        assert not authenticator.failures, "a client's name counted against the server"


@pytest.mark.parametrize("exact", [True, False])
async def test_hostile_names_bind_as_nobody(by_name: LdapNameSite, exact: bool) -> None:
    await by_name.put_password("lamp")
    async with by_name.running(exact_names=exact) as authenticator:
        for what, name in HOSTILE.items():
            verdict = await login(authenticator, name)
            assert isinstance(verdict, Allow) == (what in SAME_TO_LDAP and not exact), f"{what}: {verdict}"
        assert not authenticator.failures


@pytest.mark.parametrize("name", ["DEV1", "dev1 ", " dev1", "\N{FULLWIDTH LATIN SMALL LETTER D}ev1"])
async def test_another_spelling_is_let_in_by_a_setting_alone(either: LdapSite, name: str) -> None:
    """To slapd each is dev1. Rules and EMQX see the spelling: a rule that denies dev1 did not concern DEV1."""
    await either.put_password("dev1", groups=["meters"])
    async with either.running(group_attribute="departmentNumber") as authenticator:
        assert not isinstance(await login(authenticator, name), Allow)
        verdict = await login(authenticator, "dev1")
        assert isinstance(verdict, Allow)
        assert verdict.groups == {"meters"}, "the attribute of the name was taken for a group, or none was read"
        assert not authenticator.failures
    async with either.running(exact_names=False) as authenticator:
        assert isinstance(await login(authenticator, name), Allow)


async def test_a_client_id_in_the_filter_is_compared_as_well(by_search: LdapSearchSite) -> None:
    await by_search.put_password("lamp")
    async with by_search.running(search_filter="(|(uid=${clientid})(mail=${clientid}))") as authenticator:
        assert isinstance(await login(authenticator, "", clientid="lamp"), Allow)
        assert isinstance(await login(authenticator, "", clientid="Lamp"), Ignore)


@pytest.mark.parametrize(
    "settings", [{"search_filter": "(uid=${username}*)"}, {"search_filter": "(&(cn=x)(!(uid=${username})))"}]
)
async def test_a_filter_that_compares_no_attribute_with_the_name_needs_the_setting(
    by_search: LdapSearchSite, settings: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="exact_names"):
        by_search.make({**by_search.settings(), **settings})
    by_search.make({**by_search.settings(), **settings, "exact_names": False})


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a\\b", "a+b=c", "#a", "a*(b)", "<a;>", "ä€", "a/b"])
async def test_a_user_who_really_has_such_a_name_is_found_by_it(either: LdapSite, name: str) -> None:
    await either.put_password(name)
    async with either.running() as authenticator:
        assert isinstance(await login(authenticator, name), Allow)
        assert isinstance(await login(authenticator, name, "wrong"), Deny)


async def test_an_empty_password_is_never_asked_about(either: LdapSite) -> None:
    """The server would say yes to it, for whatever name."""
    await either.put_password("lamp")
    async with either.running() as authenticator:
        before = either.server.log().count("BIND dn=")
        verdict = await login(authenticator, "lamp", "")
        assert isinstance(verdict, Deny), verdict
        assert not isinstance(await login(authenticator, "plug", ""), Allow)
        said = either.server.log().split("BIND dn=")[before + 1 :]
        assert not any(line.startswith('"uid=') for line in said), "it was asked"


async def test_an_unknown_user_is_passed_on_by_search_and_refused_by_name(
    by_search: LdapSearchSite, unique: str
) -> None:
    async with by_search.running() as authenticator:
        assert isinstance(await login(authenticator, "plug"), Ignore)
    async with LdapNameSite(by_search.server, f"{unique}-n").running() as authenticator:
        assert isinstance(await login(authenticator, "plug"), Deny), (
            "the directory says the same as of a wrong password"
        )


async def said_of(site: LdapSite, before: int) -> str:
    """What the server has logged since then, once it has logged a bind that failed: it answers first."""
    await until(lambda: "RESULT tag=97 err=49" in site.server.log()[before:], "a bind that failed")
    return site.server.log()[before:]


async def test_an_unknown_user_costs_a_bind_as_a_wrong_password_does(by_search: LdapSearchSite) -> None:
    await by_search.put_password("lamp")
    before = len(by_search.server.log())
    async with by_search.running() as authenticator:
        counts = []
        for name in ("lamp", "plug"):
            await login(authenticator, "lamp", "wrong")  # the connection is bound as nobody after it
            await said_of(by_search, before)
            before = len(by_search.server.log())
            await login(authenticator, name, "wrong")
            said = await said_of(by_search, before)
            before += len(said)
            counts.append((said.count(" BIND dn="), said.count(" SRCH base=")))
        assert counts[0] == counts[1], "an unknown user can be told by what is asked"


async def test_groups_and_superusers(either: LdapSite) -> None:
    await either.put_password("lamp", groups=["lights", "cn=admins,ou=groups,dc=example,dc=org"])
    await either.put_password("plug", groups=["lights"])
    await either.put_password("fan")
    async with either.running(group_attribute="departmentNumber", superuser_group="admins") as authenticator:
        lamp, plug, fan = [await login(authenticator, name) for name in ("lamp", "plug", "fan")]
        assert isinstance(lamp, Allow)
        assert isinstance(plug, Allow)
        assert isinstance(fan, Allow)
        assert (lamp.groups, lamp.is_superuser) == ({"lights", "admins"}, True)
        assert (plug.groups, plug.is_superuser) == ({"lights"}, False)
        assert (fan.groups, fan.is_superuser) == (frozenset(), False)
    async with either.running() as authenticator:
        assert (await login(authenticator, "lamp")) == Allow("ldap", "lamp"), "groups without group_attribute"


async def test_a_group_with_a_comma_refuses_its_user(either: LdapSite) -> None:
    await either.put_password("lamp", groups=["a,b"])
    async with either.running(group_attribute="departmentNumber") as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Deny)
        assert "comma" in verdict.detail


async def test_an_entry_without_password_lets_nobody_in(either: LdapSite) -> None:
    await either.put_password("lamp", None)
    async with either.running() as authenticator:
        for password in (GOOD, "", "x"):
            assert isinstance(await login(authenticator, "lamp", password), Deny)


@pytest.mark.parametrize("searcher", [slapd.SEARCHER, slapd.LIMITED])
async def test_a_filter_that_finds_several_lets_nobody_in(by_search: LdapSearchSite, searcher: str) -> None:
    """The first of several passed for the only one where the directory shows one entry and says that it has more."""
    await by_search.put_password("lamp")
    await by_search.put_password("plug")
    query = "(|(uid=${username})(objectClass=inetOrgPerson))"
    async with by_search.running(search_filter=query, search_username=searcher) as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Deny)
        assert "several entries" in verdict.detail


async def test_an_entry_that_cannot_be_read_refuses_its_user_alone(either: LdapSite) -> None:
    """Three logins of such a user had the breaker open for everybody."""
    for name in ("lamp", "shy", "mute"):
        await either.put_password(name)
    async with either.running() as authenticator:
        for _ in range(4):
            for name in ("shy", "mute"):
                verdict = await login(authenticator, name)
                assert not isinstance(verdict, Allow)
                if name == "shy" or isinstance(either, LdapNameSite):  # to a search, the other one is not there
                    assert isinstance(verdict, Deny)
                    assert (verdict.reason, "auth.ldap.exact_names" in verdict.detail) == ("refused", True)
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert authenticator.up
        assert not authenticator.failures


async def test_starttls(either: LdapSite) -> None:
    await either.put_password("lamp")
    async with either.running(tls=either.tls()) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert "TLS established" in either.server.log()
    async with either.running(tls=either.tls(ca_file=None)) as authenticator:
        assert "certificate that is not trusted" in authenticator.problem


def answer(number: int, tag: int, code: int, *more: bytes) -> bytes:
    result = element(0x0A, bytes((code,))) + element(4) + element(4, b"so be it")
    return element(0x30, element(2, bytes((number,))), element(tag, result, *more))


@pytest.mark.parametrize(("said", "words"), [
    (answer(1, 0x78, 2), "offers no StartTLS"),
    (answer(1, 0x78, 12), "offers no StartTLS"),
    (answer(1, 0x78, 52), "ended the connection"),
    (answer(0, 0x78, 52), "ended the connection"),
    (answer(1, 0x61, 0), "does not speak LDAP as it should"),
    (answer(2, 0x78, 0), "does not speak LDAP as it should"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak LDAP as it should"),
    (b"", "closed the connection"),
    (answer(1, 0x78, 0) + b"\x16\x03nonsense", "closed the connection"),  # dropped: it came in the open
])  # fmt: skip
async def test_tls_that_is_asked_for_and_not_offered(either: LdapSite, said: bytes, words: str) -> None:
    """Whatever it says, nothing but the request for StartTLS was sent to it in the open."""
    heard = bytearray()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(65_536))
        writer.write(said)
        await writer.drain()
        if said:
            heard.extend(await reader.read(65_536))

    async with (
        played(play) as port,
        either.running(address=f"ldap://127.0.0.1:{port}", tls=either.tls()) as authenticator,
    ):
        assert not authenticator.up
        assert words in authenticator.problem
    assert heard.startswith(start_tls_request(1))
    assert slapd.PASSWORD.encode() not in heard


async def test_answers_sent_along_before_tls_are_not_believed(either: LdapSite) -> None:
    """Somebody on the way answers the coming bind in the open, behind the server's yes to StartTLS."""
    await either.put_password("lamp")
    server = either.server

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            upstream.write(await reader.read(65_536))
            forged = b"".join(answer(number, 0x61, 0) for number in range(2, 6))
            writer.write(await upstream_reader.read(65_536) + forged)
            await asyncio.wait(
                [asyncio.create_task(pump(reader, upstream)), asyncio.create_task(pump(upstream_reader, writer))]
            )
        finally:
            upstream.transport.abort()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                target.write(data)
        target.transport.abort()

    async with (
        played(play) as port,
        either.running(address=f"ldap://127.0.0.1:{port}", tls=either.tls()) as authenticator,
    ):
        with contextlib.suppress(BackendDownError):
            verdict = await login(authenticator, "lamp", "wrong")
            assert isinstance(verdict, Deny), f"the forged answer was believed: {verdict}"


async def test_a_users_rights_do_not_decide_what_the_next_search_finds(by_search: LdapSearchSite) -> None:
    """A connection is bound as a user after a login; users may read nobody else's entry."""
    await by_search.put_password("lamp")
    await by_search.put_password("plug")
    async with by_search.running(pool_size=1) as authenticator:
        for name in ("lamp", "plug", "lamp", "lamp"):
            assert isinstance(await login(authenticator, name), Allow), name


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"search_base": "ou=nowhere,dc=example,dc=org"}, "has no entry auth.ldap.search_base"),
    ({"search_username": None, "search_password": None}, "has no entry auth.ldap.search_base"),
    ({"search_password": None}, "without auth.ldap.search_password"),
    ({"search_filter": "uid=${username}"}, "search_filter cannot be read: the filter lacks a '\\('"),
], ids=["base", "anonymous", "no password", "no filter"])  # fmt: skip
async def test_settings_that_cannot_work_end_the_start(
    by_search: LdapSearchSite, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        async with by_search.running(**changes):
            pass


async def test_passwords_are_in_no_message(by_search: LdapSearchSite) -> None:
    await by_search.put_password("lamp")
    by_search.server.kill()
    try:
        async with by_search.running() as authenticator:
            with pytest.raises(BackendDownError) as caught:
                await login(authenticator, "lamp")
            assert slapd.PASSWORD not in f"{caught.value}{caught.value.__cause__!r}{authenticator.problem}"
    finally:
        by_search.server.heal()


async def test_names_as_long_as_mqtt_allows_do_not_make_the_directory_hang_up(either: LdapSite) -> None:
    """Escaped, such a name has 192 KiB; with a password of 64 KiB it is more than slapd takes of a stranger
    (sockbuf_max_incoming): it ended the connection, and three such logins had the breaker open for everybody."""
    await either.put_password("lamp")
    async with either.running() as authenticator:
        for name in ("*" * 65_535, "\N{HOT BEVERAGE}" * 21_845, "a" * 65_535):
            verdict = await login(authenticator, name, "p" * 65_535)
            assert not isinstance(verdict, Allow)
        assert isinstance(await login(authenticator, "lamp", "p" * 65_535), Deny)
        assert isinstance(await login(authenticator, "lamp"), Allow)
        assert not authenticator.failures, "a client's name counted against the server"
        # Longer names are not folded. To the directory each of these is lamp, and each had tries of its own.
        for padding in (253, 257, 316):
            assert not isinstance(await login(authenticator, "lamp" + " " * padding), Allow), padding


@pytest.mark.parametrize("code", [19, 53])
async def test_an_account_that_the_directory_locked_is_no_directory_down(by_name: LdapNameSite, code: int) -> None:
    """389-ds answers the bind of a locked account with constraintViolation, that of an inactive one with
    unwillingToPerform."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(65_536):  # one at a time, each shorter than 128 bytes
            number, bind = request[4], request[5] == 0x60
            writer.write(answer(number, 0x61, code) if bind else answer(number, 0x65, 0))

    async with (
        played(play) as port,
        by_name.running(address=f"ldap://127.0.0.1:{port}", bind_dn="uid=${username},o=x") as one,
    ):
        for _ in range(4):
            verdict = await login(one, "lamp")
            assert isinstance(verdict, Deny)
            assert verdict.reason == "refused"
        assert one.up
        assert not one.failures


async def test_a_user_is_not_let_in_without_its_groups_while_the_directory_is_busy(by_search: LdapSearchSite) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        searches = 0
        uid = element(0x30, element(4, b"uid"), element(0x31, element(4, b"lamp")))
        while request := await reader.read(65_536):  # one at a time, each shorter than 128 bytes
            number, bind = request[4], request[5] == 0x60
            searches += not bind
            if searches == 2 and not bind:  # after the probe's: the user
                entry = element(0x64, element(4, b"uid=lamp,o=x"), element(0x30, uid))
                writer.write(element(0x30, element(2, bytes((number,))), entry))
            writer.write(answer(number, 0x61, 0) if bind else answer(number, 0x65, 51 if searches == 3 else 0))

    async with played(play) as port:
        address, where = f"ldap://127.0.0.1:{port}", {"search_base": "o=x", "search_filter": "(uid=${username})"}
        async with by_search.running(address=address, **where, group_attribute="memberOf") as one:
            with pytest.raises(BackendDownError, match="cannot take the question now"):
                await login(one, "lamp")
