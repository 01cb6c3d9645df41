"""How a part on another node tells how it ended."""

from __future__ import annotations

import pytest
from prefect.states import Cancelled, Completed, Failed

from nightferry.errors import GateClosed, PartFailed
from tasks.place import told


def test_what_went_well_is_handed_on():
    state = Completed(message="every store is staged")
    assert told("stage-one", "TEX-ACTV-1", state) is state


def test_an_error_of_ours_is_raised_as_the_same_error_again():
    message = "Flow run encountered an exception: GateClosed: the gate stays shut: SG1/a is missing"
    state = told("move-group", "TEX-ACTV-1", Failed(message=message))
    assert state.message == "the gate stays shut: SG1/a is missing"
    with pytest.raises(GateClosed, match=r"^the gate stays shut: SG1/a is missing$"):
        state.result()


@pytest.mark.parametrize(
    "state",
    [
        Failed(message="Flow run encountered an exception: MemoryError: "),
        Failed(message="Flow run encountered an exception: Path: not an error class of ours"),
        Failed(name="Crashed", message=None),
        Cancelled(message="somebody stopped it"),
    ],
)
def test_anything_else_names_the_flow_and_the_node(state):
    with pytest.raises(PartFailed, match="stage-one on TEX-ACTV-1 ended"):
        told("stage-one", "TEX-ACTV-1", state).result()


def test_a_named_outcome_keeps_its_name():
    assert told("move-group", "TEX-ACTV-1", Failed(name="GateHeld", message="held: SG1/a")).name == "GateHeld"
