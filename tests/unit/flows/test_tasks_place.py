"""How a part on another node tells how it ended."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil

import httpx
import prefect.exceptions
import pytest
from prefect.states import Cancelled, Completed, Crashed, Failed, exception_to_failed_state

import nightferry
from nightferry.cli.backup import _own_error
from nightferry.errors import Cancelled as Stopped
from nightferry.errors import GateClosed, NightferryError, PartFailed, PrefectRequired, in_tree
from tasks.part import as_own
from tasks.place import with_own_error


def test_what_went_well_is_handed_on():
    state = Completed(message="every store is staged")
    assert with_own_error("stage-one", "TEX-ACTV-1", state) is state


def test_an_error_of_ours_is_raised_as_the_same_error_again():
    message = "Flow run encountered an exception: GateClosed: the gate is held: SG1/a is missing"
    state = with_own_error("move-group", "TEX-ACTV-1", Failed(message=message))
    assert state.message == "the gate is held: SG1/a is missing"
    with pytest.raises(GateClosed, match=r"^the gate is held: SG1/a is missing$"):
        state.result()


def kinds() -> list[type[NightferryError]]:
    """Every error class of the core, wherever it is defined."""
    for module in pkgutil.walk_packages(nightferry.__path__, "nightferry."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[NightferryError]] = [NightferryError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    return [kind for kind in found if kind.__module__.startswith("nightferry.")]


def as_sent(error: NightferryError) -> Failed:
    """The state that the server keeps of a flow which raised this: Prefect's own words, and no data."""
    state = asyncio.run(exception_to_failed_state(error, message="Flow run encountered an exception:"))
    return Failed(message=state.message)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_core_ends_with_the_exit_code_that_it_has_here(kind):
    raised = kind.__new__(kind)  # some say more than a message, and none of that is sent
    NightferryError.__init__(raised, "a file\nof two lines: gone", hint="fix it", subject="SG1/a")
    here = in_tree(raised)  # as it leaves every flow
    assert (here.hint, here.subject) == ("fix it", "SG1/a")
    with pytest.raises(NightferryError, match=r"^a file\nof two lines: gone$") as there:
        with_own_error("stage-one", "TEX-ACTV-1", as_sent(here)).result()
    assert there.value.exit_code == here.exit_code == kind.exit_code
    assert type(there.value) is type(here)
    assert isinstance(raised, type(there.value))


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (Failed(message="Flow run encountered an exception: MemoryError: "), NightferryError),
        (
            Failed(message="Flow run encountered an exception: Path: not an error class of ours"),
            NightferryError,
        ),
        (Failed(message="Flow run encountered an exception: ConnectError: no route"), PrefectRequired),
        (Failed(message="Flow run encountered an exception: MissingFlowError: no such"), PrefectRequired),
        (Crashed(message=None), PartFailed),
        (Cancelled(message="somebody stopped it"), Stopped),
    ],
)
def test_anything_else_names_the_flow_and_the_node(state, kind):
    with pytest.raises(NightferryError, match="stage-one on TEX-ACTV-1 ended") as raised:
        with_own_error("stage-one", "TEX-ACTV-1", state).result()
    assert type(raised.value) is kind
    if raised.value.exit_code != 50:
        # What the command line says of the same end of its own flow.
        local = state if state.is_cancelled() else Failed(message=state.message, data=of_name(state.message))
        own = _own_error(local)
        assert own is not None
        assert own.exit_code == raised.value.exit_code


def of_name(message: str) -> Exception:
    """An exception of the class that a message names."""
    name = message.split(": ")[1]
    found = getattr(httpx, name, None) or getattr(prefect.exceptions, name, None)
    return found("no") if found is not None else type(name, (Exception,), {})()


def test_a_part_that_was_stopped_is_no_named_outcome_of_the_night():
    with pytest.raises(Stopped):
        as_own(with_own_error("stage-one", "TEX-ACTV-1", Cancelled(message="somebody stopped it")))
    held = as_own(with_own_error("move-group", "TEX-ACTV-1", Failed(name="GateHeld", message="held: SG1/a")))
    assert (held.name, held.message) == ("GateHeld", "held: SG1/a")


def test_a_named_outcome_keeps_its_name():
    assert (
        with_own_error("move-group", "TEX-ACTV-1", Failed(name="GateHeld", message="held: SG1/a")).name
        == "GateHeld"
    )
