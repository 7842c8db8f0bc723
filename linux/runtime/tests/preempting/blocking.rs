//! Tests of `blocking_tolerant`: if a poll blocks, the poll is *set aside*, that is, the vCPU (the
//! run queue) continues on another thread. A poll that computes is not interrupted.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use upshift::{Level, Preemption, Runtime, time};

use crate::{ExclusiveRuntime, build, burn};

/// Builds a runtime that tolerates blocking polls. Returns `None` if the kernel does not permit it.
fn tolerant_runtime() -> Option<ExclusiveRuntime> {
    let builder = Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Off)
        .blocking_tolerant(true);
    build(builder).filter(|runtime| {
        let is_tolerant = runtime.handle().preemption_stats().vcpus == 1;
        if !is_tolerant {
            crate::skipped(&"the kernel does not permit vCPUs that tolerate blocking polls");
        }
        is_tolerant
    })
}

#[test]
fn a_poll_that_blocks_leaves_the_vcpu_to_other_coroutines() {
    let Some(runtime) = tolerant_runtime() else {
        return;
    };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    runtime.block_on(async {
        let read_byte = async move {
            let mut byte = [0];
            reader.read_exact(&mut byte).unwrap();
            byte[0]
        };
        let reader = upshift::spawn(read_byte, Level::at::<5>());
        // The reader blocks until this write.
        let write_byte = async move {
            time::sleep(Duration::from_millis(2)).await;
            writer.write_all(&[7]).unwrap();
        };
        upshift::spawn(write_byte, Level::at::<40>()).await.unwrap();
        assert_eq!(reader.await.unwrap(), 7);
    });
    assert!(runtime.handle().preemption_stats().set_aside > 0);
}

#[test]
fn a_poll_that_runs_is_not_interrupted() {
    let Some(runtime) = tolerant_runtime() else {
        return;
    };
    runtime.block_on(async {
        let busy = Arc::new(AtomicBool::new(false));
        let (setter, is_busy) = (busy.clone(), busy.clone());
        let long = async move {
            setter.store(true, Ordering::Relaxed);
            burn(Duration::from_millis(20));
            setter.store(false, Ordering::Relaxed);
        };
        let urgent = async move {
            time::sleep(Duration::from_millis(3)).await;
            is_busy.load(Ordering::Relaxed)
        };
        let urgent = upshift::spawn(urgent, Level::at::<5>());
        let long = upshift::spawn(long, Level::at::<40>());
        assert!(!urgent.await.unwrap(), "the long poll was interrupted");
        long.await.unwrap();
    });
    let stats = runtime.handle().preemption_stats();
    assert_eq!(stats.suspensions, stats.set_aside, "{stats:?}");
}

/// Runs polls that sleep until a less urgent coroutine, which the poll has started, has run. No
/// other event reaches the vCPU.
fn run_polls_that_wait_for_their_children(runtime: &ExclusiveRuntime) {
    for _ in 0..300 {
        runtime.block_on(async {
            let waiting_poll = async {
                let (sender, receiver) = std::sync::mpsc::channel();
                let child = async move { sender.send(7).unwrap() };
                upshift::spawn(child, Level::at::<63>()).detach();
                receiver.recv().unwrap()
            };
            let waiting_poll = upshift::spawn(waiting_poll, Level::at::<5>());
            assert_eq!(waiting_poll.await.unwrap(), 7);
        });
    }
}

#[test]
fn a_poll_that_sleeps_until_a_less_urgent_coroutine_has_run_is_set_aside() {
    if let Some(runtime) = crate::runtime() {
        run_polls_that_wait_for_their_children(&runtime);
    }
    if let Some(runtime) = tolerant_runtime() {
        run_polls_that_wait_for_their_children(&runtime);
    }
}
