"""Stages of a start add up."""

from octavo.engine.timeline import Timeline


def test_stages_inside_the_last_one_take_their_time_from_it() -> None:
    times = iter([0.0, 1.0, 1.0, 6.0])
    timeline = Timeline(lambda: next(times))
    with timeline.stage("import"):
        pass
    with timeline.stage("start workers"):
        pass
    timeline.replace_last([("build", 1.5), ("load", 3.0)])
    assert timeline.stages == [("import", 1.0), ("start workers", 0.5), ("build", 1.5), ("load", 3.0)]
    assert str(timeline).endswith("together 6.00 s")


def test_what_ran_meanwhile_is_told_and_not_added() -> None:
    timeline = Timeline(lambda: 0.0, stages=[("import", 2.0)], beside=[("context", 1.0)])
    assert str(timeline) == "import 2.00 s, together 2.00 s; meanwhile context 1.00 s"
