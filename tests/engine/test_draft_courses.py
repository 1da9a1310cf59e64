"""Decodes of many requests drawn at once, and one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from simulator.engine.batches.draft_course import Course, CourseRules, Start
from simulator.engine.batches.draft_courses import CourseMaker
from simulator.scheduling import Speculation
from simulator.speculation.runs import DrawnRuns
from tests.helpers import request_table

REQUESTS = 150
BLOCK = 16


def maker(asynchronous: bool, match_rate: float, window: int) -> CourseMaker:
    """Return the courses of 150 requests, some of one token."""
    rng = np.random.default_rng(3)
    outputs = rng.integers(1, 200, REQUESTS)
    outputs[::10] = 1
    prompts = rng.integers(1, 500, REQUESTS)
    table = request_table([0] * REQUESTS, prompts.tolist(), outputs.tolist())
    law = DrawnRuns(7, [(0.8, 0.5, 0.2)], [0.0], np.zeros(REQUESTS, int), [match_rate])
    rules = CourseRules(Speculation("eagle", 3), asynchronous, BLOCK, window, 4000)
    return CourseMaker(law, rules, table)


def starts(table_of: CourseMaker, lead: int) -> list[Start]:
    """Return the usual states in which sequences start: with `lead` 1 after their prompts, else before the last token
    of it."""
    table, found = table_of._table, []
    for prompt, output, limit in zip(table.prompt_tokens, table.output_tokens, table.max_tokens, strict=True):
        known, left = int(prompt) - (1 - lead), int(output) - lead
        held = -(-(known + 3 * lead) // BLOCK)
        found.append(Start(lead, 0, known, 0, left, held, int(prompt + limit)))
    return found


def contents(course: Course) -> tuple[object, ...]:
    steps = range(course.end - course.first + 1)
    steps = range(course.token_steps + 1)
    return (
        (course.first, course.last, course.end, course.token_steps),
        course.rows(course.first).tolist(),
        course.outcomes(course.token_steps),
        [(course.computed(at), course.blocks(at)) for at in steps],
        [(course.known(at), course.sure(at)) for at in steps],
        [course.used(at) for at in range(course.token_steps)],
    )


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("match_rate", "window"), [(1.0, 0), (0.6, 0), (1.0, 64)])
def test_decodes_drawn_together_and_one_by_one_are_equal(
    lead: int, asynchronous: bool, match_rate: float, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = maker(asynchronous, match_rate, window)
    usual = starts(together, lead)
    drawn = [contents(together.course(index, 5, start)) for index, start in enumerate(usual)]
    monkeypatch.setattr("simulator.engine.batches.draft_courses._TOKENS", 1)
    alone = maker(asynchronous, match_rate, window)
    assert drawn == [contents(alone.course(index, 5, start)) for index, start in enumerate(usual)]


@pytest.mark.parametrize("lead", [0, 1])
def test_usual_decodes_are_drawn_with_others_and_unusual_ones_by_themselves(
    lead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    draw = CourseMaker._draw

    def counted(self: CourseMaker, requests: Sequence[int], some: list[Start]) -> object:
        sizes.append(len(requests))
        return draw(self, requests, some)

    monkeypatch.setattr(CourseMaker, "_draw", counted)
    courses = maker(False, 1.0, 0)
    usual = starts(courses, lead)
    for index, start in enumerate(usual):
        assert courses.course(index, 5, start).start == start
    assert sizes == [64, 64, 22]
    again = usual[4]._replace(draws=2, base=usual[4].base + 3, left=usual[4].left - 3)
    assert courses.course(4, 9, again).start == again
    assert sizes == [64, 64, 22, 1]


def test_requests_whose_group_was_forgotten_are_drawn_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.engine.batches.draft_courses._KEPT", 1)
    courses, alone = maker(True, 1.0, 0), maker(True, 1.0, 0)
    usual = starts(courses, 1)
    late = [courses.course(index, 5, usual[index]) for index in (70, 0, 71, 3)]
    assert [contents(course) for course in late] == [
        contents(alone.course(index, 5, usual[index])) for index in (70, 0, 71, 3)
    ]
    assert list(courses._groups) == [1]
