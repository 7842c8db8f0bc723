//! Threads that wait on a condition: the comparison for the coroutines.
//!
//! Resident memory counts the touched part of the stacks (64 KiB asked for each); the kernel's
//! own stack and structures of a thread, some 20 KiB more, are not in it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

use super::show::SpawnReport;
use crate::choice::Model;
use upshift_load::machine;

const STACK: usize = 64 * 1024;

/// Spawns `count` threads, lets them wait, wakes and joins them.
pub(crate) fn measure(count: usize) -> Result<SpawnReport> {
    let gate = (Mutex::new(false), Condvar::new());
    let open = || {
        *gate.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        gate.1.notify_all();
    };
    let wait = || {
        let closed = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(gate.1.wait_while(closed, |open| !*open));
    };
    let before = machine::resident_bytes();
    std::thread::scope(|scope| {
        let began = Instant::now();
        for started in 0..count {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, wait);
            if let Err(error) = thread {
                open();
                return Err(error).with_context(|| {
                    format!("the system started only {started} of {count} threads: ask for fewer, or raise `ulimit -u`")
                });
            }
        }
        let spawn = began.elapsed();
        let memory = machine::resident_bytes().saturating_sub(before);
        Ok((spawn, memory, Instant::now(), open()))
    })
    .map(|(spawn, memory, began, ())| SpawnReport::new(Model::Thread, count, memory, spawn, began.elapsed()))
}
