"""Records that stood beside copies: what is none is said in one way."""

import pytest

from nightferry.copies.delivery import Decisions


@pytest.mark.parametrize("through", ["Infinity", "1e999", "NaN", '"x"', "null", "[]", "9" * 5000])
def test_a_document_whose_end_is_no_number_is_none(through: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Decisions(f'{{"id": "a", "through": {through}, "records": []}}'.encode())
