//! Coroutines that wait to be woken by their id.
//!
//! Memory counts control blocks and futures. The list of join handles (the test's own, not a
//! coroutine's) is made and touched before memory is read the first time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use upshift::{JoinHandle, Level, Runtime};

use super::show::SpawnReport;
use crate::choice::Model;
use upshift_load::machine;

/// More urgent than the main coroutine: when that yields, all of them have run.
const LEVEL: Level = Level::at::<16>();

/// Spawns `count` coroutines, lets them wait, wakes and joins them, on one vCPU.
pub(crate) fn measure(count: usize) -> Result<SpawnReport> {
    let runtime = Runtime::builder()
        .vcpus(1)
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let open = Arc::new(AtomicBool::new(false));
        let mut handles: Vec<Option<JoinHandle<()>>> = Vec::new();
        handles.resize_with(count, || None);
        let before = machine::resident_bytes();
        let began = Instant::now();
        for handle in &mut handles {
            let open = Arc::clone(&open);
            let wait = async move {
                poll_fn(|_| {
                    if open.load(Ordering::Relaxed) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
            };
            *handle = Some(
                upshift::try_spawn(wait, LEVEL).context("cannot spawn so many: ask for fewer")?,
            );
        }
        upshift::yield_now().await;
        let spawn = began.elapsed();
        let memory = machine::resident_bytes().saturating_sub(before);
        let began = Instant::now();
        open.store(true, Ordering::Relaxed);
        for handle in handles.iter().flatten() {
            upshift::wake(handle.id()).context("a coroutine ended before it was woken")?;
        }
        for handle in handles.into_iter().flatten() {
            handle
                .await
                .map_err(|error| anyhow!("a coroutine failed: {error}"))?;
        }
        Ok(SpawnReport::new(
            Model::Coroutine,
            count,
            memory,
            spawn,
            began.elapsed(),
        ))
    })
}
