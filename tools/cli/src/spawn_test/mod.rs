//! `upshift spawn-test`: what one coroutine (or thread) of many costs in memory and time.
//!
//! A process of its own per run, so that the memory of one run does not hide in that of another.
//! All are spawned first and wait; then all are woken, run to their end and are joined.

mod args;
mod coroutine;
mod run;
mod show;
mod thread;

pub(crate) use args::SpawnTestArgs;
pub(crate) use run::spawn_test;
pub(crate) use show::{SpawnReport, table};
