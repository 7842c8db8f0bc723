//! The C ABI as libraries, `libupshift_c.a` and `libupshift_c.so`. A package of its own, because
//! cargo optimizes across crates only in packages that are not Rust libraries too. That makes the
//! static library less than half as large.

pub use capi::*;
