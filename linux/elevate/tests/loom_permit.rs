//! Models of the permit: loom explores all interleavings of a thread and a supervisor. Run them
//! with
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p upshift-elevate --test loom_permit`

#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::SeqCst;
use loom::sync::atomic::fence;
use upshift_elevate::dispatch::Permit;

/// The thread and the supervisor must never use the shared value at the same time, and neither may
/// wait forever.
#[test]
fn a_revoked_permit_keeps_its_thread_out() {
    loom::model(|| {
        let shared = Arc::new((Permit::new(), UnsafeCell::new(0u32)));
        let permit_of_thread = shared.clone();
        let thread = loom::thread::spawn(move || {
            for _ in 0..2 {
                permit_of_thread.0.enter();
                permit_of_thread.1.with_mut(|value| {
                    // SAFETY: the permit keeps other threads out, and loom checks this.
                    unsafe { *value += 1 }
                });
                let _ = permit_of_thread.0.leave();
            }
        });
        if shared.0.revoke(|| fence(SeqCst)).is_ok() {
            shared.1.with_mut(|value| {
                // SAFETY: as above.
                unsafe { *value += 10 }
            });
            shared.0.grant();
        }
        thread.join().unwrap();
    });
}

/// A supervisor that requests an answer during a use must be notified at the end of the use, or
/// learn that no use is in progress.
#[test]
fn a_request_is_answered_or_seen_to_be_late() {
    loom::model(|| {
        let permit = Arc::new(Permit::new());
        let permit_of_thread = permit.clone();
        let thread = loom::thread::spawn(move || {
            permit_of_thread.enter();
            permit_of_thread.leave()
        });
        let in_use = permit.ask(|| fence(SeqCst));
        let notified = thread.join().unwrap();
        // The thread also answers a request that was made before its use began.
        assert!(notified || !in_use);
    });
}
