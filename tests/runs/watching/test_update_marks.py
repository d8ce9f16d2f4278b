"""Are the moments of an update written when a device has reached all of them?"""

from dpbook.ranks import DeviceMoment
from dpbook.runs.watching.step_spans import OpenSpan
from dpbook.runs.watching.update_marks import UpdateRecord


def test_an_update_waits_for_its_last_step_and_for_collectives_that_end_on_another_stream():
    begun, ended, stepped = (DeviceMoment(event=object()) for _ in range(3))
    marks = [("returned", DeviceMoment(event=object())), ("stepped", stepped)]
    spans = [OpenSpan("call", begun, ended), OpenSpan("call", begun)]
    assert list(UpdateRecord(marks=marks, spans=spans).last_events()) == [stepped.event, ended.event]
    assert list(UpdateRecord(marks=[("stepped", DeviceMoment(1.0))], spans=[]).last_events()) == []
