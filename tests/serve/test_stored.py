"""The store of responses: limits on number, bytes and age; a response belongs to its client."""

import time

import pytest

from gesso.errors import InputError
from gesso.serve.errors import ApiError
from gesso.serve.settings import ServerLimits
from gesso.serve.stored import ResponseStore, StoredResponse


def response(size: int = 30) -> StoredResponse:
    return StoredResponse(b"i" * (size // 3), b"o" * (size // 3), b"b" * (size // 3))


def ids(store: ResponseStore, client: str, names: str) -> str:
    """Return which of these ids a client can still read."""
    found = ""
    for id in names:
        try:
            store.get(client, id)
        except ApiError as error:
            assert error.status == 404
        else:
            found += id
    return found


def test_a_response_of_another_client_is_not_found():
    store = ResponseStore(ServerLimits())
    store.put("a", "1", response())
    assert ids(store, "a", "1") == "1" and ids(store, "b", "1") == ""
    with pytest.raises(ApiError, match="belongs to another client"):
        store.delete("b", "1")
    with pytest.raises(ApiError) as error:
        store.fetch("b", "1", [])
    assert (error.value.status, error.value.code) == (404, "previous_response_not_found")


def test_the_number_of_responses_is_limited_and_the_oldest_is_dropped():
    store = ResponseStore(ServerLimits(stored_responses=3))
    for id in "12345":
        store.put("a", id, response())
    assert ids(store, "a", "12345") == "345"


def test_the_bytes_of_responses_are_limited():
    store = ResponseStore(ServerLimits(stored_bytes=100))
    for id in "1234":
        store.put("a", id, response(30))
    assert ids(store, "a", "1234") == "234"
    store.put("a", "5", response(300))  # larger than the limit
    assert ids(store, "a", "12345") == ""
    store.put("a", "6", response(90))
    assert ids(store, "a", "6") == "6"


@pytest.mark.parametrize(
    "limits", [ServerLimits(stored_responses=4), ServerLimits(stored_bytes=130)], ids=["number", "bytes"]
)
def test_a_client_with_many_responses_does_not_displace_those_of_others(limits):
    store = ResponseStore(limits)
    store.put("a", "1", response())
    for id in "23456789":
        store.put("b", id, response())
    assert ids(store, "a", "1") == "1" and ids(store, "b", "23456789") == "789"


def test_responses_expire():
    lasting, brief = ResponseStore(ServerLimits(stored_seconds=60)), ResponseStore(ServerLimits(stored_seconds=0.01))
    for store in (lasting, brief):
        store.put("a", "1", response())
    time.sleep(0.02)
    assert ids(lasting, "a", "1") == "1"
    assert ids(brief, "a", "1") == ""
    assert not brief._clients and not brief._bytes


def test_deleting_frees_the_bytes():
    store = ResponseStore(ServerLimits())
    store.put("a", "1", response())
    store.delete("a", "1")
    assert ids(store, "a", "1") == ""
    assert not store._clients and not store._bytes


def test_a_stored_conversation_larger_than_a_body_is_rejected():
    store = ResponseStore(ServerLimits(body_bytes=50))
    store.put("a", "1", response(60))
    assert store.fetch("a", "1", []) == b"i" * 20 + b"\n" + b"o" * 20
    with pytest.raises(ApiError, match="exceeds the limit of 50 bytes"):
        store.fetch("a", "1", ["1"])


def test_zero_stores_nothing_and_other_limits_must_be_above_zero():
    store = ResponseStore(ServerLimits(stored_responses=0))
    store.put("a", "1", response())
    with pytest.raises(ApiError, match="this server stores no responses"):
        store.get("a", "1")
    for name in ("stored_responses", "stored_bytes", "stored_seconds"):
        with pytest.raises(InputError, match=name):
            ServerLimits(**{name: -1})
