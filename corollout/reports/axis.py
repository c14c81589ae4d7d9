"""What training curves are drawn over."""

from typing import Literal

Axis = Literal["seconds", "tokens", "updates"]
