"""What may and what may not raise an alarm from outside."""

from difflib import SequenceMatcher

import pytest

from kvfence.incident.alarms import Judged, best_rate, find_exact, find_fuzzy, has_amnesia, too_fast

PLANTED = {"tenant-01": ("Hugo", "Turner", "Lisbon"), "tenant-02": ("Edith", "Barnes", "Oslo")}


def likeness(one: str, other: str) -> float:
    """Liken as rapidfuzz does, from the standard library."""
    return 100 * SequenceMatcher(None, one, other).ratio()


def test_an_exact_marker_is_found_whatever_its_case() -> None:
    """A planted word in an answer names its tenant."""
    assert find_exact("- hugo said", PLANTED) == (("tenant-01", "Hugo"),)


@pytest.mark.parametrize("text", ["", "copy: amber basalt", "turners and lisbonites", "hug o"])
def test_words_that_only_contain_a_marker_are_none(text: str) -> None:
    """Parts of other words, and answers without markers, raise nothing."""
    assert find_exact(text, PLANTED) == ()


def test_a_garbled_marker_is_found_by_likeness() -> None:
    """A marker with one wrong letter is still readable."""
    assert find_fuzzy("the Turnar family", PLANTED, likeness) == (("tenant-01", "Turner"),)


def test_short_markers_are_not_met_by_likeness() -> None:
    """'Hugs' is no 'Hugo': too much resembles a short word."""
    assert find_fuzzy("Hugs for Olso", PLANTED, likeness) == ()


def test_words_of_the_asker_do_not_count_as_garbled_markers() -> None:
    """An asker who writes 'burner' is not told that 'Turner' leaked."""
    assert find_fuzzy("burner", PLANTED, likeness) != ()
    assert find_fuzzy("burner", PLANTED, likeness, own=("burner",)) == ()


def test_amnesia_is_no_trace_of_the_own_prompt() -> None:
    """One own word is trace enough; without own words nothing can be said."""
    assert has_amnesia("- Hugo Turner", ("amber", "basalt"))
    assert not has_amnesia("copy: Amber", ("amber", "basalt"))
    assert not has_amnesia("- Hugo Turner", ())


def test_the_best_rate_counts_prompts_sent_together() -> None:
    """Three prompts that were all begun after one second took the work of three."""
    assert best_rate([[(40, 0.5)], [(40, 1.0), (40, 1.0), (40, 1.0)]]) == pytest.approx(120)
    assert best_rate([]) == 0


def test_an_answer_before_its_prompt_can_have_been_computed_is_too_fast() -> None:
    """At 100 tokens a second a prompt of 60 takes 0.6 s; with the margin 0.1 s is impossible and 0.3 s is not."""
    assert too_fast([("a", 60, 0.1)], 100) == {"a"}
    assert too_fast([("a", 60, 0.3)], 100) == set()
    assert too_fast([("a", 60, 0.1)], 0) == set()


def test_later_answers_of_a_group_must_have_waited_for_the_work_of_all_before() -> None:
    """Ten prompts answered within half a second were not all computed."""
    group = [(f"r{index}", 60, 0.5) for index in range(10)]
    assert len(too_fast(group, 100)) == 8


def test_what_counts_as_which_alarm() -> None:
    """Text alarms are readable text only; a status alarm is no marker alarm."""
    assert Judged("a", exact=(("t", "m"),)).text
    assert Judged("a", amnesia=True).marker
    assert not Judged("a", amnesia=True).text
    assert not Judged("a", status=True).marker
