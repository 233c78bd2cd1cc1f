"""What demx asks of the machine: memory that goes back."""

from demx import machine


def test_memory_goes_back_after_a_long_compilation(monkeypatch):
    """The listener trims the heap for programs that took their time, and for nothing else."""
    trims, listeners = [], []

    class Library:
        def mallopt(self, what, value):
            raise AssertionError("one heap for all threads makes the devices wait for each other")

        def malloc_trim(self, keep):
            trims.append(keep)

    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr("jax.monitoring.register_event_duration_secs_listener", listeners.append)
    machine.return_memory()
    (heard,) = listeners
    heard("/jax/core/compile/backend_compile_duration", 0.01)
    heard("/jax/core/compile/jaxpr_trace_duration", 9.0)
    assert not trims
    heard("/jax/core/compile/backend_compile_duration", 9.0, fun_name="descend")
    assert trims == [0]


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: object())
    machine.return_memory()
