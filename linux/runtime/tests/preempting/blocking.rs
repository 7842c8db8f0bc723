//! vCPUs that tolerate blocking polls, and interrupt none.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use upshift::{Level, Preemption, Runtime, time};

use crate::{Alone, build, burn};

fn tolerant() -> Option<Alone> {
    let builder = Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Off)
        .blocking_tolerant(true);
    build(builder).filter(|runtime| {
        let can = runtime.handle().preemption_stats().vcpus == 1;
        if !can {
            crate::skipped(&"the kernel cannot");
        }
        can
    })
}

#[test]
fn a_poll_that_blocks_leaves_the_vcpu_to_others() {
    let Some(runtime) = tolerant() else { return };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    runtime.block_on(async {
        let blocks = async move {
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            byte[0]
        };
        let blocks = upshift::spawn(blocks, Level::at::<5>());
        // The reader blocks until this write.
        let writes = async move {
            time::sleep(Duration::from_millis(2)).await;
            writer.write_all(&[7]).unwrap();
        };
        upshift::spawn(writes, Level::at::<40>()).await.unwrap();
        assert_eq!(blocks.await.unwrap(), 7);
    });
    assert!(runtime.handle().preemption_stats().set_aside > 0);
}

#[test]
fn a_poll_that_runs_is_not_interrupted() {
    let Some(runtime) = tolerant() else { return };
    runtime.block_on(async {
        let busy = Arc::new(AtomicBool::new(false));
        let (set, seen) = (busy.clone(), busy.clone());
        let long = async move {
            set.store(true, Ordering::Relaxed);
            burn(Duration::from_millis(20));
            set.store(false, Ordering::Relaxed);
        };
        let urgent = async move {
            time::sleep(Duration::from_millis(3)).await;
            seen.load(Ordering::Relaxed)
        };
        let urgent = upshift::spawn(urgent, Level::at::<5>());
        let long = upshift::spawn(long, Level::at::<40>());
        assert!(!urgent.await.unwrap(), "in the middle of the long poll");
        long.await.unwrap();
    });
    let stats = runtime.handle().preemption_stats();
    assert_eq!(stats.suspensions, stats.set_aside, "{stats:?}");
}

/// A poll sleeps until a less urgent coroutine, which it has started, has run; nothing else happens
/// on the vCPU.
fn waits_for_a_coroutine_that_it_has_started(runtime: &Alone) {
    for _ in 0..300 {
        runtime.block_on(async {
            let waits = async {
                let (sender, receiver) = std::sync::mpsc::channel();
                let sends = async move { sender.send(7).unwrap() };
                upshift::spawn(sends, Level::at::<63>()).detach();
                receiver.recv().unwrap()
            };
            let waits = upshift::spawn(waits, Level::at::<5>());
            assert_eq!(waits.await.unwrap(), 7);
        });
    }
}

#[test]
fn a_poll_that_sleeps_until_something_less_urgent_has_run_is_set_aside() {
    if let Some(runtime) = crate::runtime() {
        waits_for_a_coroutine_that_it_has_started(&runtime);
    }
    if let Some(runtime) = tolerant() {
        waits_for_a_coroutine_that_it_has_started(&runtime);
    }
}
