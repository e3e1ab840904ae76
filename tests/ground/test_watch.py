"""Code may count its own spans while someone else takes them away."""

from minipar.trace import Tracer


def test_watching_sees_the_spans_of_the_enclosed_code_even_when_drained() -> None:
    tracer = Tracer()
    tracer.add("before", "compute", 0, 1)
    with tracer.watch() as outer:
        tracer.add("a", "compute", 1, 2)
        with tracer.watch() as inner:
            tracer.add("b", "compute", 2, 3)
            assert [s.name for s in tracer.drain()] == ["before", "a", "b"]
        tracer.add("c", "compute", 3, 4)
    tracer.add("after", "compute", 4, 5)
    assert [s.name for s in outer] == ["a", "b", "c"]
    assert [s.name for s in inner] == ["b"]
