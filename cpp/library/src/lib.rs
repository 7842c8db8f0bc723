//! The C ABI as libraries, `libupshift_c.a` and `libupshift_c.so`. They have a package of their
//! own, because cargo optimizes across crates only in packages that are not also Rust libraries.
//! The optimization makes the static library less than half as large.

pub use capi::*;
