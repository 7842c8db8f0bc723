//! The upshift command.
fn main() {}
