"""When each broker answered last, and who is to be asked."""

import ssl
from unittest.mock import Mock

import pytest
from aiokafka.errors import AuthenticationFailedError, NodeNotReadyError, RequestTimedOutError

from bridge.errors import RefusedError
from bridge.kafka.batch import Handover
from bridge.kafka.contacts import FORGOTTEN_NS, PROBE_EVERY_NS, SUSPECT_NS, Contacts
from bridge.kafka.error_codes import AnswerError
from bridge.kafka.producer import KafkaProducer
from config.error_words import words
from config.settings import KafkaSettings
from tests.kinds import there
from tests.unit.access_parts import SECOND, ManualClock

LIST = [(1, "a", 9092), (2, "b", 9092), (3, "c", 9092)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def contacts(clock: ManualClock) -> Contacts:
    contacts = Contacts(clock.now_ns)
    contacts.listed(LIST)
    return contacts


def due(contacts: Contacts, *suspects: int) -> list[int]:
    return [contact.broker for contact in contacts.due(suspects)]


def test_a_broker_that_answers_owes_nothing(contacts: Contacts, clock: ManualClock) -> None:
    contacts.asked(1)
    clock.ns += 5_000_000
    contacts.answered(1, written=True)
    (first, *_) = contacts
    assert (first.asked_ns, first.answered_ns, first.written_ns) == (0, clock.ns, clock.ns)
    clock.ns += 3600 * SECOND
    assert due(contacts) == []


def test_it_owes_since_the_first_question_that_was_not_answered(contacts: Contacts, clock: ManualClock) -> None:
    contacts.asked(2)
    asked_ns = clock.ns
    for _ in range(5):
        clock.ns += SECOND
        contacts.asked(2)
    contacts.failed(2, TimeoutError())
    contact = there(contacts.get(2))
    assert (contact.asked_ns, contact.problem) == (asked_ns, "no answer in time")
    contacts.answered(2)
    assert (contact.asked_ns, contact.problem) == (0, None)


def test_who_owes_an_answer_is_asked_every_other_second_and_no_more(contacts: Contacts, clock: ManualClock) -> None:
    contacts.asked(2)
    assert due(contacts) == []
    clock.ns += SUSPECT_NS + 1
    assert due(contacts) == [2]
    assert due(contacts) == []
    clock.ns += PROBE_EVERY_NS + 1
    assert due(contacts) == [2]


def test_a_suspect_is_asked_that_has_said_nothing_for_a_while(contacts: Contacts, clock: ManualClock) -> None:
    contacts.answered(1)
    contacts.answered(3)
    clock.ns += SUSPECT_NS
    contacts.answered(3)
    clock.ns += 1
    assert due(contacts, 1, 3) == [1]


def test_a_broker_that_left_and_came_back_is_the_same(contacts: Contacts, clock: ManualClock) -> None:
    contacts.listed(LIST[:2])
    gone = there(contacts.get(3))
    assert (gone.listed, gone.left_ns) == (False, clock.ns)
    contacts.listed([*LIST[:2], (3, "elsewhere", 9093)])
    assert contacts.get(3) is gone
    assert (gone.listed, gone.host, gone.port) == (True, "elsewhere", 9093)


@pytest.mark.parametrize(("error", "stays"), [
    (ConnectionRefusedError(), False), (TimeoutError(), True), (None, False),
], ids=["taken away", "frozen", "left in good order"])  # fmt: skip
def test_one_that_has_left_is_forgotten_and_a_frozen_one_is_not(
    contacts: Contacts, clock: ManualClock, error: OSError | None, *, stays: bool
) -> None:
    if error is not None:
        contacts.asked(3)
        contacts.failed(3, error)
    contacts.listed(LIST[:2])
    clock.ns += FORGOTTEN_NS
    due(contacts)
    assert contacts.get(3) is not None
    clock.ns += 1
    due(contacts)
    assert (contacts.get(3) is not None) is stays


def test_addresses_before_the_first_list_are_nobodys_broker(contacts: Contacts) -> None:
    contacts.asked("bootstrap-0")
    contacts.answered("bootstrap-0")
    contacts.failed("bootstrap-0", OSError())
    assert [contact.broker for contact in contacts] == [1, 2, 3]


def test_what_led_when_it_fell_silent_is_known_until_it_answers(contacts: Contacts) -> None:
    contacts.asked(1)
    contact = there(contacts.get(1))
    contact.led = (("orders", 1),)
    contact.accepts = True
    contacts.answered(1)
    assert (contact.led, contact.accepts) == ((), False)


def test_who_says_why_it_is_not_to_be_talked_to_is_not_frozen(contacts: Contacts) -> None:
    contact = there(contacts.get(1))
    expired = ssl.SSLCertVerificationError(1, "certificate verify failed: certificate has expired")
    expired.verify_code = 10  # X509_V_ERR_CERT_HAS_EXPIRED
    for error in (expired, AuthenticationFailedError("wrong password")):
        contact.accepts = True
        contacts.failed(1, error)
        assert not contact.accepts
        assert "certificate that has expired" in contact.problem or contact.problem == "wrong password"
    for late in (TimeoutError(), RequestTimedOutError()):
        contact.accepts = True
        contacts.failed(1, late)
        assert contact.accepts


BOTH = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9), [Errno 111] Connect call failed ('1.2.3.4', 9)"


@pytest.mark.parametrize(("error", "refuses"), [
    (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9092)"), True), (OSError(BOTH), True),
    (OSError(113, "Connect call failed ('10.0.0.1', 9092)"), False), (RequestTimedOutError(), False),
    (ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:1)"), False), (OSError(), False),
])  # fmt: skip
def test_what_a_library_says_is_put_into_words(contacts: Contacts, error: OSError, *, refuses: bool) -> None:
    contacts.failed(1, error)
    contact = there(contacts.get(1))
    assert (contact.problem, contact.refuses) == (words(error), refuses)


async def test_a_right_that_is_missing_is_known_to_the_next_producer() -> None:
    """A producer may be replaced meanwhile; /status says it all the while, not only after the next refusal."""
    contacts = Contacts()
    settings = KafkaSettings(bootstrap_servers=("127.0.0.1:1",))
    first, second = (KafkaProducer(settings, "test", (), contacts=contacts) for _ in range(2))
    answered = Mock()
    handover = Handover("denied", 0, Mock(), bytearray(), 0, answered, 1)
    handover.attempts = 2  # the first one's connection broke
    first._settle(handover, AnswerError(29, None))  # TOPIC_AUTHORIZATION_FAILED
    ((offset, error), _) = answered.call_args
    assert offset == -1
    assert isinstance(error, RefusedError)
    second._client = Mock()
    second._client.cluster.unauthorized_topics = set()
    assert second.refuses("denied")
    assert second.trouble("denied") is not None
    assert not second.refuses("other")


async def test_a_batch_without_a_connection_hides_not_why_there_is_none() -> None:
    """With a frozen broker the page quoted the library: "Attempt to send a request to node which is not ready"."""
    producer = KafkaProducer(KafkaSettings(bootstrap_servers=("127.0.0.1:1",)), "test", ())
    producer.contacts.listed([(1, "kafka-1", 9093)])
    producer.contacts.failed(1, ConnectionRefusedError(111, "Connect call failed"))
    error = NodeNotReadyError("Attempt to send a request to node which is not ready (node id 1).")
    producer._undelivered(Mock(leader=1, handovers=[]), error)
    contact = there(producer.contacts.get(1))
    assert (contact.problem, contact.refuses) == ("connection refused", True)
