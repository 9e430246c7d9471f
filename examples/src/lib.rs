//! Examples: see the `examples` folder beside this crate.
