"""The status page as people meet it, in Chromium: documents of rare states, and a whole gateway's own."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from pydantic import SecretStr
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from config.settings import HttpSettings
from gateway.http.answers import Answer
from gateway.http.server import HttpServer
from gateway.local.embedded.kafka import KafkaCluster
from tests import status_documents
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.browser import PHONE, WIDE, Browser, contrast, luminance
from tests.chaos.fixtures import MakeGateway
from tests.waiting import wait_until

TOKEN = "of-the-test-0123456789"
UNKNOWN = "\N{EN DASH}"


class Site:
    """The HTTP port, in a thread, which says ``document`` on /status, or answers with ``status``."""

    def __init__(self, token: str | None = None) -> None:
        self.document: Any = status_documents.quiet()
        self.status = 200
        self.asked = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        http = HttpSettings(port=0, token=None if token is None else SecretStr(token))
        self._server = HttpServer(http, self, page=True)
        self._call(self._server.start())
        self.url = f"{self._server.url}/"
        self.port = self._server.port

    async def answer(self, path: str, accept: str) -> Answer:
        self.asked += path == "/status"
        return Answer(self.status, "application/json; charset=utf-8", json.dumps(self.document))

    def _call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    def away(self) -> None:
        """The port is closed, as after a crash."""
        self._call(self._server.stop(0))

    def back(self) -> None:
        """It is open again, at the same place."""
        self._server = HttpServer(HttpSettings(port=self.port), self, page=True)
        self._call(self._server.start())

    def close(self) -> None:
        self.away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def show(browser: Browser, site: Site, document: Any, **how: Any) -> None:
    """Open the page, and return when it shows the document."""
    site.document = document
    browser.open(site.url, **how)
    browser.wait(lambda: browser.text("#headline") != "Asking the gateway…", "the page shows an answer")


def again(browser: Browser, site: Site, times: int = 1) -> None:
    """Return when /status was asked and shown so often again, without the two seconds between."""
    wanted = site.asked + times

    def shown() -> bool:
        browser.script("return poll()")  # which does nothing while the page asks by itself
        return site.asked >= wanted and not browser.script("return asking")

    browser.wait(shown, "another answer is shown")


def rows(browser: Browser, section: str) -> list[list[str]]:
    """The texts of a table's cells."""
    code = (
        "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    found: list[list[str]] = browser.script(code, f"#{section} tbody tr")
    return found


def fits(browser: Browser) -> bool:
    """Whether nothing is wider than the window."""
    return bool(browser.script("return document.documentElement.scrollWidth <= window.innerWidth"))


def cell(browser: Browser, topic: str, partition: int) -> Any:
    [found] = [one for one in browser.all("#grid .cell") if one.get_attribute("data-key") == f"{topic}\n{partition}"]
    return found


def test_all_is_well(browser: Browser, site: Site) -> None:
    document = status_documents.quiet()
    document["kafka"]["brokers"][0]["silent_seconds"] = 0.002  # of the batch under way
    show(browser, site, document)
    assert browser.text("#headline") == "All is well."
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "ok"
    assert browser.text("#sign") == "✓"
    assert not browser.driver.find_element(By.ID, "problems").is_displayed()
    flow = browser.text("#flow")
    for words in [
        "4 of 4 sessions",
        "window 51 of 4,000",
        "4,213/s",
        "882 KiB/s",
        "801 KiB/s",
        "3 of 3 brokers answer",
    ]:
        assert words in flow
    assert "p50 6.2 ms, p99 21 ms" in browser.text("#latency")
    assert browser.text("#legend") == "30 ok\n6 idle"
    assert rows(browser, "brokers")[0] == ["1", "kafka-1.plant.example:9092", "ok", "12", "0", "300 ms ago"]
    assert rows(browser, "sessions")[3] == ["3", "plant-7-0-3", "subscribed", "13 of 1,000"]
    assert rows(browser, "routes")[1] == ["status", "20,416", "20,416", "12", "0"]
    assert rows(browser, "ledger")[0] == ["received", "1,304,967"]
    assert browser.text("#ledger .balance") == "✓ Balance 0: every message is accounted for."
    assert "None since the start." in browser.text("#dead")
    assert "0 B of 1.0 GiB" in browser.text("#spool")
    assert "RUNNING" in browser.text("#life")
    assert not browser.driver.find_element(By.ID, "workers").is_displayed()
    assert browser.driver.title == "All is well. · Gateway plant-7"


def test_commands_have_a_table_where_there_are_any(browser: Browser, site: Site) -> None:
    document = status_documents.quiet()
    show(browser, site, document)
    assert not browser.driver.find_element(By.ID, "commands").is_displayed()
    document["commands"] = status_documents.commands()
    again(browser, site)
    assert rows(browser, "commands") == [
        ["switches", "sent, from 2 partitions", "1,210", "1,200", "3", "5", "2", "13 s"]
    ]
    assert browser.text("#commands .note") == "Not done: expired 3. Most wait for: pump-7 5."
    document["commands"] = status_documents.commands(open=False) | {"problem": "Connection refused."}
    again(browser, site)
    assert rows(browser, "commands")[0][1] == "not sent: Connection refused."
    assert fits(browser)


def test_it_asks_for_nothing_but_itself_and_complains_of_nothing(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    asked = site.asked
    browser.wait(lambda: site.asked > asked, "/status is asked again by itself")
    requested = [url for url in browser.requested() if not url.startswith("data:")]
    assert set(requested) == {site.url, f"{site.url}status"}
    assert browser.complaints() == []
    assert browser.driver.get_cookies() == []
    assert browser.script("return localStorage.length + sessionStorage.length") == 0


def test_the_worst_comes_first_and_the_rest_below_with_what_to_do(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    assert browser.text("#headline").startswith("Kafka broker 2 (kafka-2.plant.example:9092) has been silent for 14 s")
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "critical"
    aside = browser.text("#aside")
    assert "restart it, and not the gateway: gateway doctor tells" in aside
    assert "Runbook: broker-silent" in aside
    others = [one.text for one in browser.all("#problems li")]
    assert [text.split(":")[0] for text in others] == ["Critical", "Warning"]
    assert "Runbook: partition-leaderless" in others[0]
    assert browser.driver.title.startswith("✕ Kafka broker 2")
    assert rows(browser, "brokers")[1][2] == "silent for 14 s"
    assert rows(browser, "sessions")[0] == ["2", "plant-7-0-2", "not connected: refused: not authorised", "13 of 1,000"]
    assert "3 of 4 sessions" in browser.text("#flow")
    assert "2 of 3 brokers answer" in browser.text("#flow")
    assert rows(browser, "dead")[0][1:3] == ["interceptor", "telemetry"]
    assert "interceptor 210, too_large 4" in browser.text("#dead")


def test_the_runbook_is_a_click_away(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken(), size=PHONE)
    browser.driver.find_element(By.CSS_SELECTOR, "#aside a").click()
    browser.wait(lambda: browser.driver.title == "Runbook", "the runbook opens")
    assert browser.driver.current_url == f"{site.url}runbook#broker-silent"
    heading = browser.driver.find_element(By.ID, "broker-silent")
    top = browser.script("return arguments[0].getBoundingClientRect().top", heading)
    assert 0 <= top < PHONE[1] / 2, "the heading is not in sight"
    assert fits(browser)
    assert browser.complaints() == []


def test_a_verdict_is_spoken_once(browser: Browser, site: Site) -> None:
    """A live region that is written again is read out again: not every two seconds, since a silence grows."""
    show(browser, site, status_documents.broken())
    spoken = browser.driver.find_element(By.ID, "spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    assert spoken.get_property("textContent") == browser.text("#headline")
    browser.script(
        "window.writes = 0; new MutationObserver((all) => { window.writes += all.length; })"
        ".observe(document.getElementById('spoken'), {childList: true, characterData: true, subtree: true});"
    )
    site.document["problems"][0]["text"] = "Kafka broker 2 has been silent for 16 s."
    again(browser, site, 2)
    assert browser.text("#headline").endswith("16 s.")
    assert browser.script("return window.writes") == 0
    site.document = status_documents.quiet()
    again(browser, site)
    assert browser.text("#headline") == "All is well."
    assert browser.script("return window.writes") > 0
    assert not browser.driver.find_element(By.ID, "problems").is_displayed()


SIGNS = {
    5: "leaderless \N{MULTIPLICATION SIGN}",
    4: "silent !",
    7: "spooling ↓",
    10: "waiting …",
    13: "held ‖",
    0: "ok ",
}


def test_partitions_differ_by_sign_and_colour_and_say_what_they_are(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    topic = "devices.telemetry"
    for partition, expected in SIGNS.items():
        found = cell(browser, topic, partition)
        assert f"{found.get_attribute('data-health')} {found.text}" == expected
    kinds = [*(cell(browser, topic, number) for number in SIGNS), cell(browser, "devices.status", 6)]
    colours = {one.value_of_css_property("background-color") for one in kinds}
    assert len(colours) == len(kinds)
    silent = cell(browser, topic, 4)
    words = silent.get_attribute("title")
    assert words == (
        "devices.telemetry-4: silent. Leader: broker 2. 812 records wait (186 KiB). No acknowledgement for 14 s while"
        " records wait."
    )
    assert silent.get_attribute("aria-label") == words
    silent.click()
    assert browser.text("#detail") == words
    assert "No leader." in cell(browser, topic, 5).get_attribute("title")
    assert "4,120 records are in the spool" in cell(browser, topic, 7).get_attribute("title")
    site.document["partitions"] = [one for one in site.document["partitions"] if one["partition"] != 4]
    again(browser, site)
    assert browser.text("#detail") == "devices.telemetry-4: not listed any more."


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read_in_both_modes(browser: Browser, site: Site, dark: bool) -> None:
    show(browser, site, status_documents.broken(), dark=dark)
    assert (luminance(browser.style("body", "background-color")) < 0.1) is dark
    card = browser.style("#brokers", "background-color")
    for selector in ["#brokers td", "#brokers thead th", ".legend", "#life dt", "#latency", ".word", ".check"]:
        assert contrast(browser.style(selector, "color"), card) >= 4.5, selector
    assert contrast(browser.style("#headline", "color"), browser.style("#verdict", "background-color")) >= 7
    assert contrast(browser.style("#flow text", "fill"), browser.style("#flow .box", "fill")) >= 4.5
    for kind in ["silent", "leaderless", "spooling", "waiting", "held"]:
        found = f"#grid [data-health={kind}]"
        # A sign in bold: large text, for which 3 is enough.
        assert contrast(browser.style(found, "color"), browser.style(found, "background-color")) >= 3, kind
        assert contrast(browser.style(found, "background-color"), card) >= 1.5, kind


@pytest.mark.parametrize("name", ["quiet", "broken", "hostile", "crowd"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, site: Site, name: str) -> None:
    show(browser, site, getattr(status_documents, name)(), size=PHONE)
    assert fits(browser)
    assert browser.text("#flow") != ""
    drawing = browser.driver.find_element(By.CSS_SELECTOR, "#flow svg").rect
    assert drawing["height"] > drawing["width"], "side by side it would be too small to read"
    assert browser.script("return document.querySelector('#flow text').getBoundingClientRect().height") >= 12
    assert browser.driver.find_element(By.CSS_SELECTOR, "#grid .cell").rect["width"] >= 20, "too small to tap"


def test_turning_the_phone_draws_anew(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.quiet(), size=PHONE)
    browser.resize(WIDE)

    def wide() -> bool:
        # In the page itself: what it draws anew is no longer what was found.
        return bool(
            browser.script(
                "const r = document.querySelector('#flow svg').getBoundingClientRect(); return r.width > r.height"
            )
        )

    browser.wait(wide, "the drawing lies down")
    assert "4 of 4 sessions" in browser.text("#flow")


def test_silence_looks_stale_and_says_since_when(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    assert browser.text("#fresh").endswith("live")
    site.away()
    silent = "The gateway does not answer since "
    browser.wait(lambda: browser.script("return poll()") or browser.text("#headline").startswith(silent), "it is seen")
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "unknown"
    assert float(browser.style("#data", "opacity")) < 0.6
    assert "grayscale" in browser.style("#data", "filter")
    assert "ago" in browser.text("#fresh")
    assert "What is below is from" in browser.text("#since")
    assert browser.text("#problems h2") == "Wrong when it answered last"
    assert len(browser.all("#problems li")) == 3
    assert browser.driver.title.startswith("? The gateway does not answer")
    site.document = status_documents.quiet()
    site.back()
    browser.wait(lambda: browser.text("#headline") == "All is well.", "it is live again by itself")
    assert browser.style("#data", "opacity") == "1"
    assert browser.text("#since") == ""
    assert browser.text("#fresh").endswith("live")


def test_an_answer_that_is_none_is_silence_too(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.quiet())
    site.status = 500
    again(browser, site)
    assert browser.text("#headline").startswith("The gateway does not answer since ")
    assert "HTTP 500" in browser.text("#aside")
    site.status = 200
    again(browser, site)
    assert browser.text("#headline") == "All is well."


def test_a_page_that_never_had_an_answer_shows_nothing(browser: Browser, site: Site) -> None:
    site.status = 503
    browser.open(site.url)
    browser.wait(lambda: browser.text("#headline") == "The gateway does not answer.", "it says so")
    assert not browser.driver.find_element(By.ID, "data").is_displayed()


def test_names_that_look_like_markup_are_text(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.hostile())
    again(browser, site)
    assert browser.text("body").count("onerror=") > 30, "hostile names are not shown as they are"
    assert not browser.all("main img, main script, main iframe, main a[href^=javascript]")
    assert "taken" not in browser.script("return [document.title, window.name]")[1]
    assert browser.driver.title.startswith("✕ <img src=x")
    assert browser.complaints() == []
    assert {url for url in browser.requested() if not url.startswith("data:")} == {site.url, f"{site.url}status"}
    cell(browser, f"{status_documents.HOSTILE} devices.telemetry", 4).click()
    assert browser.text("#detail").startswith("<img src=x")


def test_scripts_that_are_not_its_own_do_not_run(browser: Browser, site: Site) -> None:
    """What the policy is for, should a name ever reach the parser."""
    show(browser, site, status_documents.quiet())
    refused = browser.script(
        "const tag = document.createElement('script');"
        "try { tag.text = 'window.taken = 1'; document.body.append(tag); } catch (error) { return error.name; }"
        "return String(window.taken);"
    )
    assert refused in {"TypeError", "undefined"}
    markup = "try { document.body.innerHTML = '<b>x</b>'; return 'parsed'; } catch (error) { return error.name; }"
    assert browser.script(markup) == "TypeError"
    assert "All is well." in browser.text("#headline")


def test_members_that_are_missing_hide_their_part(browser: Browser, site: Site) -> None:
    show(browser, site, {"state": "STARTING", "ready": False, "reasons": ["The worker is starting."]})
    assert browser.text("#headline") == "The worker is starting."
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "warning"
    shown = [one.get_attribute("id") for one in browser.all("#data section") if one.is_displayed()]
    assert [name for name in shown if name] == ["life"]
    assert browser.complaints() == []


@pytest.mark.parametrize("document", [{}, {"workers": []}, [], {"sessions": 3, "kafka": [], "ledger": None}])
def test_a_document_of_another_shape_breaks_nothing(browser: Browser, site: Site, document: Any) -> None:
    show(browser, site, document)
    assert browser.text("#headline") == "All is well."
    assert browser.complaints() == []


def test_not_ready_without_a_problem_says_why_and_is_grave_when_it_lasts(browser: Browser, site: Site) -> None:
    """A start or a replaced worker is not ready for a moment, and nothing is wrong."""
    reason = "The oldest message has waited 31.0 s for Kafka's acknowledgement."
    show(browser, site, {**status_documents.quiet(), "ready": False, "reasons": [reason]})
    assert browser.text("#headline") == reason
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "warning"
    browser.script("unreadySince -= BRIEF_MS")
    again(browser, site)
    assert browser.text("#headline") == reason
    assert browser.driver.find_element(By.ID, "verdict").get_attribute("data-tone") == "critical"
    site.document = status_documents.quiet()
    again(browser, site)
    assert browser.text("#headline") == "All is well."


def test_rates_come_from_two_answers_where_the_gateway_gives_none(browser: Browser, site: Site) -> None:
    document = status_documents.quiet()
    del document["rates"]
    show(browser, site, document)
    assert browser.text("#flow").count(f"{UNKNOWN}/s") == 2
    more = {"received": 1_304_967 + 20_000, "delivered": 1_304_904 + 20_000}
    site.document = {**document, "ledger": {**document["ledger"], **more}}
    browser.wait(lambda: f"{UNKNOWN}/s" not in browser.text("#flow"), "rates are shown")
    rates = [int(rate.replace(",", "")) for rate in re.findall(r"([\d,]+)/s", browser.text("#flow"))]
    assert len(rates) == 2
    assert all(1_000 < rate <= 40_000 for rate in rates), f"20,000 messages in some two seconds make {rates}"


def test_many_workers_and_partitions_stay_quick_and_bounded(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.crowd(), size=WIDE)
    assert len(browser.all("#grid .cell")) == 2000
    assert "2,000 of 4,000 partitions in use are shown" in browser.text("#partitions-note")
    assert browser.text("#headline").startswith("Worker 7 does not answer.")
    assert "64 workers" in browser.text("#flow")
    assert "252 of 252 sessions" in browser.text("#flow")
    assert len(rows(browser, "sessions")) == 24
    assert "228 more are not shown" in browser.text("#sessions .note")
    assert len(rows(browser, "workers")) == 64
    assert rows(browser, "workers")[0][:2] == [
        "7",
        "does not answer: It ended with status 1 and is started again in 8 s.",
    ]
    # Seen: 15 ms on a quiet machine; a second would be felt every time.
    took = browser.script(
        "return new Promise((done) => fetch('status').then((answer) => answer.json()).then((status) => {"
        "const times = []; for (let turn = 0; turn < 5; turn += 1) {"
        "const began = performance.now(); show(status); document.body.offsetHeight;"
        "times.push(performance.now() - began); } done(Math.min(...times)); }));"
    )
    assert took < 1000, f"{took} ms for one turn"


def test_what_emqx_keeps_and_loses_stands_beside_the_sessions(browser: Browser, site: Site) -> None:
    document = status_documents.quiet()
    known = {"known": True, "queue_length": 17, "queue_limit": 1000, "dropped": {"queue_full": 3, "expired": 1}}
    document["emqx"] = {
        "url": "http://emqx.plant:18083",
        "up": False,
        "error": "it refuses the key",
        "sessions": [
            {"client_id": "plant-7-0-1", **known},
            {"client_id": "plant-7-0-2", "known": False, "queue_length": 0, "queue_limit": 0, "dropped": {}},
        ],
    }
    document["canary"] = {"success": 1, "sent": 20, "received": 19, "lost": {"timeout": 1}, "last_seconds": 0.031}
    show(browser, site, document)
    shown = {row[1]: row[-2:] for row in rows(browser, "sessions")}
    assert shown["plant-7-0-1"] == ["17 of 1,000", "4"]
    assert shown["plant-7-0-2"] == [UNKNOWN, UNKNOWN]
    life = browser.text("#life")
    assert "comes through, the last one took 31 ms; 19 of 20 came back, 1 lost" in life
    assert "does not answer at http://emqx.plant:18083: it refuses the key" in life
    site.document = status_documents.quiet()
    again(browser, site)
    assert [len(row) for row in rows(browser, "sessions")] == [4] * 4


def test_the_keyboard_reaches_every_partition(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    assert len(browser.all("#grid .cell[tabindex='0']")) == 1, "36 stops for Tab"
    browser.script("document.querySelector('#grid .cell[tabindex=\"0\"]').focus()")

    def press(key: str) -> str:
        browser.driver.switch_to.active_element.send_keys(key)
        return str(browser.driver.switch_to.active_element.get_attribute("data-key"))

    assert press(Keys.ARROW_RIGHT) == "devices.status\n1"
    assert browser.text("#detail").startswith("devices.status-1: silent.")
    assert press(Keys.ARROW_DOWN) == "devices.telemetry\n1"
    assert press(Keys.END) == "devices.telemetry\n23"
    assert press(Keys.ARROW_RIGHT) == "devices.telemetry\n23"
    assert press(Keys.ARROW_UP).startswith("devices.status\n")
    assert press(Keys.HOME) == "devices.status\n0"
    assert press(Keys.ARROW_LEFT) == "devices.status\n0"
    again(browser, site)
    assert browser.driver.switch_to.active_element.get_attribute("data-key") == "devices.status\n0"


def test_everything_has_a_name_for_those_who_listen(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.broken())
    assert browser.driver.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"
    levels = [int(one.tag_name[1]) for one in browser.all("h1, h2, h3") if one.is_displayed()]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels
    for section in [one for one in browser.all("section") if one.is_displayed()]:
        assert section.accessible_name, section.get_attribute("id")
    drawing = browser.driver.find_element(By.CSS_SELECTOR, "#flow svg")
    assert drawing.aria_role in {"img", "image"}
    assert drawing.accessible_name.startswith("3 of 4 MQTT sessions are subscribed. 4,213 messages a second come in")
    assert all(head.get_attribute("scope") for head in browser.all("th"))


def test_a_page_that_nobody_sees_asks_nothing(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.quiet())
    browser.script(
        "Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
        "document.dispatchEvent(new Event('visibilitychange'));"
    )
    asked = site.asked
    browser.script("window.later = 0; setTimeout(() => { window.later = 1; }, 2 * EVERY_MS);")
    browser.wait(lambda: browser.script("return window.later"), "the time of two questions passes")
    assert site.asked <= asked + 1, "one may have been under way"
    browser.script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'));")
    browser.wait(lambda: site.asked > asked, "it asks at once when it is seen again")


def test_a_browser_gets_in_with_the_token_and_stays_in(browser: Browser) -> None:
    site = Site(TOKEN)
    try:
        browser.open(f"http://operator:{TOKEN}@127.0.0.1:{site.port}/")
        browser.wait(lambda: browser.text("#headline") == "All is well.", "the page shows an answer")
        again(browser, site)
        assert browser.complaints() == []
    finally:
        site.close()


def test_behind_a_path_of_a_reverse_proxy_it_asks_below_that_path(browser: Browser, site: Site) -> None:
    show(browser, site, status_documents.quiet())
    browser.script("history.replaceState(null, '', '/plant/gateway-1/')")
    browser.wait(lambda: f"{site.url}plant/gateway-1/status" in browser.requested(), "/status beside the page is asked")


def test_a_real_gateway_is_shown_with_its_traffic(
    browser: Browser, kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    gateway = make_gateway(mosquitto.port, kafka.bootstrap, unique)
    gateway.start()
    with Client(mosquitto.port) as client:
        for number in range(200):
            client.publish(f"devices/{number % 10}", b"x" * 50, qos=1)
    wait_until(lambda: gateway.metric("gateway_kafka_records_sent_total") >= 200, "200 records are in Kafka")
    browser.open(f"http://127.0.0.1:{gateway.http_port}/")
    browser.wait(lambda: browser.text("#headline") == "All is well.", "the verdict")
    assert rows(browser, "routes")[0] == ["telemetry", "200", "200", "0", "0"]
    assert len(rows(browser, "sessions")) == 4
    assert "✓ Balance 0" in browser.text("#ledger")
    assert "RUNNING" in browser.text("#life")
    assert browser.complaints() == []
    gateway.stop()
    browser.wait(
        lambda: browser.text("#headline").startswith("The gateway does not answer since"), "it is seen to stop"
    )
