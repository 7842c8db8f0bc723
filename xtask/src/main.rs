//! Setup, tests and benchmarks.
fn main() {}
