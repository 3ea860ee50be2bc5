"""Shapes and types in the signatures of shiftbound are enforced while its tests run."""

from jaxtyping import install_import_hook

install_import_hook("shiftbound", "beartype.beartype")
