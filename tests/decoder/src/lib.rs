//! Checks that need a second decoder or the code generator; see `tests/`.
