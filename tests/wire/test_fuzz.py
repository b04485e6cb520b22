"""Some hundred cases of each fuzzing target; `tests/bench/fuzz.py` runs a hundred thousand."""

import pytest
from hypothesis import HealthCheck, settings

from .fuzzing import TARGETS, a_damaged_recording, a_stream_from_an_agent, messages_of_the_wire


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_read_or_refused_in_words(name: str) -> None:
    settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))(TARGETS[name])()


def test_a_recording_whose_damage_sqlite_cannot_even_spell_is_refused_in_words() -> None:
    a_damaged_recording([(0.125, 128)], 1.0)


@pytest.mark.parametrize("value", [b"{}", b"[1]", b"1.5", b'"7"', b"null", b"true"])
def test_what_is_no_number_where_one_belongs_is_survived(value: bytes) -> None:
    for line in (b'{"id":%b,"result":{}}\n' % value, b'{"id":1,"error":{"message":"no","exit":%b}}\n' % value):
        a_stream_from_an_agent(line)
        messages_of_the_wire(line.strip())
