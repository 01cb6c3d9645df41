"""Attributes and ACLs, judged by getfacl and setfacl."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightferry.errors import IntegrityError
from nightferry.image.attributes import (
    Attributes,
    acl_from_text,
    acl_to_text,
    decode_keyword,
    encode_keyword,
    read_attributes,
)
from tests.imaging import output


def test_an_acl_is_the_text_getfacl_prints(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch(mode=0o640)
    output("setfacl", "-m", "u:1234:rx,g:77:w", file)
    found = read_attributes(os.fsencode(file))
    lines = [
        line.split(b"\t")[0]  # getfacl adds the effective rights
        for line in output("getfacl", "-cnp", file).strip().split(b"\n")
    ]
    assert found.acl_access.strip().split(b"\n") == lines


def test_an_acl_written_back_from_its_text_is_the_same(tmp_path: Path) -> None:
    file, other = tmp_path / "f", tmp_path / "g"
    file.touch()
    other.touch()
    output("setfacl", "-m", "u:70000:rx,u:5:r,g:77:w", file)
    text = read_attributes(os.fsencode(file)).acl_access
    os.setxattr(other, "system.posix_acl_access", acl_from_text(text))
    assert output("getfacl", "-cnp", other) == output("getfacl", "-cnp", file)
    assert acl_to_text(acl_from_text(text)) == text


def test_a_directory_has_a_default_acl_and_user_attributes(tmp_path: Path) -> None:
    output("setfacl", "-d", "-m", "u:1234:rx", tmp_path)
    os.setxattr(tmp_path, "user.b", b"2")
    os.setxattr(tmp_path, "user.a", b"1")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        found = read_attributes(fd)
    finally:
        os.close(fd)
    assert b"user:1234:r-x\n" in found.acl_default
    assert found.xattrs == ((b"user.a", b"1"), (b"user.b", b"2"))


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    os.setxattr(tmp_path / "f", "user.a", b"1")
    (tmp_path / "link").symlink_to("f")
    assert read_attributes(os.fsencode(tmp_path / "link")) == Attributes()


def test_no_attributes_have_no_digest() -> None:
    assert Attributes().digest() is None
    assert Attributes(((b"user.a", b""),)).digest() is not None


@pytest.mark.parametrize(
    "value", [b"", b"\2\0\0", b"\1\0\0\0", b"\2\0\0\0\1", b"\2\0\0\0" + b"\x40" + bytes(7)]
)
def test_what_is_no_acl_is_refused(value: bytes) -> None:
    with pytest.raises(IntegrityError):
        acl_to_text(value)


@pytest.mark.parametrize(
    "text", [b"user:root:rw-", b"user::rwz", b"who::rwx", b"user::rw", b"mask:5:rwx", b"user:4294967295:r--"]
)
def test_what_is_no_acl_text_is_refused(text: bytes) -> None:
    with pytest.raises(IntegrityError):
        acl_from_text(text)


@pytest.mark.parametrize("name", [b"user.a=b", b"user.%3D", b"user.%25=", b"user.%"])
def test_attribute_names_survive_the_keyword(name: bytes) -> None:
    assert b"=" not in encode_keyword(name)
    assert decode_keyword(encode_keyword(name)) == name
