//! Tests the core on a test host, with traces of its steps, random operations, races, and the
//! limits of what safe code can do.
//!
//! The tests are one program, so that it is built once and Miri reads the core once. Tests that
//! measure time, and models, are separate programs. Invariants have the numbers that the
//! documentation of `upshift_core` gives them.

#![cfg(not(loom))]

#[path = "../support/mod.rs"]
mod support;

mod contracts;
mod memory;
mod oracle;
mod races;
mod shared_turn;
mod state_changes;
mod trace_join;
mod trace_order;
mod trace_reprio;
mod trace_search;
mod trace_states;
mod trace_vcpus;
mod trace_wakes;
mod trace_watch;
mod user_code;
