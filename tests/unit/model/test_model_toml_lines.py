"""Lines of keys in TOML texts."""

import pytest

from nightferry.model.toml_lines import TomlLines

TEXT = '''\
# a comment with [brackets] and a = sign
top = 1
"quoted key" = "with # no comment"
long = [
  "a", # ] not the end
  "b]",
]
text = """
[not.a.table]
key = 1
"""
[a.b]
c.d = 'x'
inline = { one = 1, two = { three = 3 } }
[[list]]
name = "first"
  [[list.sub]]
  x = 1
  [[list.sub]]
  x = 2
[[list]]
name = "second"
  [[list.sub]]
  x = 3
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("long",), 4),
        (("long", 1), 4),
        (("text",), 8),
        (("a",), 12),
        (("a", "b"), 12),
        (("a", "b", "c", "d"), 13),
        (("a", "b", "inline"), 14),
        (("a", "b", "inline", "two", "three"), 14),
        (("list",), 15),
        (("list", 0, "name"), 16),
        (("list", 0, "sub"), 17),
        (("list", 0, "sub", 1, "x"), 20),
        (("list", 1), 21),
        (("list", 1, "name"), 22),
        (("list", 1, "sub", 0, "x"), 24),
        (("list", 1, "sub", 0, "missing"), 23),
        (("nowhere",), None),
    ],
)
def test_a_key_is_found_on_its_line(path, line):
    assert TomlLines(TEXT).line(path) == line


def test_a_key_inside_an_inline_table_of_several_lines_is_found():
    text = 'stores = [\n  { name = "a", path = "/x" },\n  { name = "b", pathh = "/y" },\n]\n'
    assert TomlLines(text).line(("stores", 1, "pathh")) == 3
