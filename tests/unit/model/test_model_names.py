"""Names of nodes, groups, runs and images."""

from datetime import date

import pytest

from nightferry.errors import ConfigError
from nightferry.model.names import (
    ImageName,
    RunName,
    image_name,
    is_back_group,
    parse_image_name,
    parse_node,
    parse_resource_group,
    parse_run,
    require_safe,
    run_name,
    split_store,
)


def test_a_node_name_says_site_role_and_number():
    node = parse_node("TEX-PASS-2")
    assert (node.site, node.role, node.number) == ("TEX", "passive", 2)
    assert parse_node("tex-actv-1").role == "active"


@pytest.mark.parametrize("name", ["mail1", "TEX-MAIL-1", "TEX-PASS-", "TEX-PASS-1x", "TEX-PASS-1\n", ""])
def test_a_node_name_without_a_role_is_refused_with_the_way_out(name):
    with pytest.raises(ConfigError) as refused:
        parse_node(name)
    assert "[[nodes]]" in refused.value.hint


def test_resource_groups_are_mail_or_back():
    mail, back = parse_resource_group("TEX-MAIL-1"), parse_resource_group("TEX-BACK-2")
    assert mail is not None
    assert mail.kind == "MAIL"
    assert back is not None
    assert (back.kind, back.number) == ("BACK", 2)
    assert parse_resource_group("disk") is None


def test_a_run_is_named_after_the_window_and_the_back_group():
    assert run_name(date(2026, 11, 30), "TEX-BACK-1") == "20261130-TEX-BACK-1"
    assert run_name("20261130", "TEX-BACK-1", 3) == "20261130-TEX-BACK-1-3"
    assert parse_run("20261130-TEX-BACK-1-3") == RunName("20261130", "TEX-BACK-1", 3)
    assert parse_run("20261130-disk") == RunName("20261130", "disk", 1)
    assert parse_run("20261130-disk-2") == RunName("20261130", "disk", 2)


@pytest.mark.parametrize(
    "name",
    [
        "20261301-TEX-BACK-1",  # no such month
        "20261130-TEX-BACK-1-1",  # the first run carries no number
        "20261130-TEX-BACK-1-02",
        "20261130-TEX-MAIL-1",
        "2026113-TEX-BACK-1",
        "20261130-",
        "20261130-a/b",
        "../20261130-disk",
        "20261130-disk\n",
    ],
)
def test_what_is_no_run_is_refused(name):
    with pytest.raises(ConfigError):
        parse_run(name)


def test_a_foreign_back_group_must_not_end_like_a_counter():
    assert is_back_group("disk")
    assert is_back_group("TEX-BACK-1")
    assert not is_back_group("disk-2")
    assert not is_back_group("TEX-MAIL-1")
    with pytest.raises(ConfigError):
        run_name("20261130", "disk-2")


def test_an_image_name_is_taken_apart_again():
    name = image_name("20261130-TEX-BACK-1-2", "SG1", "priv1", 0)
    assert name == "20261130-TEX-BACK-1-2.SG1.priv1.L0"
    assert parse_image_name(name) == ImageName("20261130-TEX-BACK-1-2", "SG1", "priv1", 0)
    sharded = image_name("20261130-TEX-BACK-1", "SG1", "priv1", 9, shard=7)
    assert sharded.endswith(".L9.s07")
    assert parse_image_name(sharded).shard == 7
    assert str(parse_image_name(sharded)) == sharded


@pytest.mark.parametrize(
    "name",
    [
        "20261130-TEX-BACK-1.SG1.priv1",
        "20261130-TEX-BACK-1.SG1.priv1.L10",
        "20261130-TEX-BACK-1.SG1.priv1.L0.s1",
        "20261130-TEX-BACK-1.SG1.priv1.L0.s0007",
        "20261130-TEX-BACK-1.SG1.a.b.L0",
        "20261130-TEX-BACK-1.SG1/../x.priv1.L0",
        "20261130-TEX-BACK-1-1.SG1.priv1.L0",
    ],
)
def test_what_is_no_image_is_refused(name):
    with pytest.raises(ConfigError):
        parse_image_name(name)


@pytest.mark.parametrize("bad", [("a.b", "s", 0), ("g", "-s", 0), ("g", "s", 10), ("g", "x" * 65, 0)])
def test_an_image_is_never_given_a_name_that_cannot_be_read_back(bad):
    group, store, level = bad
    with pytest.raises(ConfigError):
        image_name("20261130-TEX-BACK-1", group, store, level)


def test_stores_are_written_group_slash_store():
    assert split_store("SG1/priv1") == ("SG1", "priv1")
    for name in ("priv1", "SG1/", "/priv1", "SG1/a/b", "SG1/a.b"):
        with pytest.raises(ConfigError):
            split_store(name)


def test_safe_names_hold_no_dot():
    assert require_safe("priv_1-a", "store") == "priv_1-a"
    with pytest.raises(ConfigError, match="store"):
        require_safe("priv.1", "store")


def test_a_cartridge_of_no_pool_can_be_recorded_and_one_of_no_barcode_cannot() -> None:
    from nightferry.model.records import CartridgeRecord

    words = {"destination": "tape", "pool": "", "state": "unknown", "at": "2026-11-10T21:00:00Z"}
    assert CartridgeRecord.model_validate(words | {"barcode": "A00001L9"}).pool == ""
    for barcode in ("", "../x", "a/b", ".hidden", "A\n"):
        with pytest.raises(ValueError, match="barcode"):
            CartridgeRecord.model_validate(words | {"barcode": barcode})
