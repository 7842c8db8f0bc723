//! The core under a host of the tests: traces of what it does, random operations, races, and what safe code must not be able to do.
//!
//! One program, so that it is built once and Miri reads the core once. What measures time or is a model is a program of its own.

#![cfg(not(loom))]

#[path = "../support/mod.rs"]
mod support;

mod contracts;
mod foreign_code;
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
