//! Models the state word of a coroutine, which records whether it is ready, running, blocked or
//! exited, and its references. The checker runs every interleaving of two or three threads, and
//! every reordering that the memory model allows. Invariants have the numbers that the
//! documentation of `upshift_core` gives them.
//!
//! ```text
//! LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" \
//!     cargo test --release -p upshift-core --test 'loom*'
//! ```
//!
//! The source is included by path, because the word is private to the crate.

#![cfg(loom)]

#[allow(dead_code, reason = "each model uses a part")]
#[path = "../src/coroutine/state.rs"]
mod state;
#[allow(dead_code, unused_imports, reason = "each model uses a part")]
#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use loom::thread;

use state::{
    HandleTransition, StateWord, TransitionToBlocked, TransitionToExited, TransitionToFree,
    TransitionToReady, TransitionToRunning,
};

struct Coroutine {
    word: StateWord,
    /// Accessed only by polls, so that the checker detects polls that overlap.
    future: UnsafeCell<usize>,
    /// Written by wakers before they wake.
    data: AtomicUsize,
    /// Value of `data` that the last poll saw.
    seen: AtomicUsize,
    /// Number of wakes that returned `Enqueue`.
    enqueued: AtomicUsize,
    /// Number of polls that were told to cancel.
    cancelled: AtomicUsize,
    output: UnsafeCell<Option<u32>>,
    waiter: UnsafeCell<Option<u32>>,
    /// Number of wakes of the waiter.
    woken: AtomicUsize,
    /// Number of drops of the output.
    dropped: AtomicUsize,
    /// Number of times the slot was freed.
    freed: AtomicUsize,
    /// Set when the exiting thread has read the published id.
    has_read_id: AtomicBool,
}

const ID: u32 = 0;

impl Coroutine {
    fn new(handle: bool, owned: bool) -> Arc<Coroutine> {
        let word = StateWord::free();
        assert_eq!(word.init(handle, owned), ID);
        Arc::new(Coroutine {
            word,
            future: UnsafeCell::new(0),
            data: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            enqueued: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
            output: UnsafeCell::new(None),
            waiter: UnsafeCell::new(None),
            woken: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            has_read_id: AtomicBool::new(false),
        })
    }

    /// Polls until the coroutine blocks or is cancelled. The caller owns it.
    fn run(&self) {
        loop {
            match self.word.begin_poll() {
                TransitionToRunning::Poll => {
                    // SAFETY: only the owner has access; the checker verifies this.
                    self.future.with_mut(|polls| unsafe { *polls += 1 });
                    self.seen.store(self.data.load(Relaxed), Relaxed);
                }
                TransitionToRunning::Cancel => {
                    // SAFETY: only the owner has access; the checker verifies this.
                    self.future.with_mut(|polls| unsafe { *polls += 1 });
                    self.cancelled.fetch_add(1, Relaxed);
                    return;
                }
            }
            if self.word.end_poll() == TransitionToBlocked::Blocked {
                return;
            }
        }
    }

    /// Wakes like a waker. In this model the thread that must enqueue the coroutine polls it at
    /// once.
    fn wake(&self, by_id: bool) {
        let wake = if by_id {
            self.word.wake_by_id(ID, false)
        } else {
            self.word.wake()
        };
        if wake == TransitionToReady::Enqueue {
            self.enqueued.fetch_add(1, Relaxed);
            self.run();
        }
    }

    /// Wakes like a waker that is consumed, on a thread that serves a vCPU.
    fn wake_by_value(&self) {
        match self.word.wake_and_release() {
            TransitionToReady::Enqueue => {
                self.enqueued.fetch_add(1, Relaxed);
                self.run();
            }
            TransitionToReady::Absorbed => {}
            TransitionToReady::Exited => self.release(),
        }
    }

    fn release(&self) {
        self.act_on_release(self.word.release(1));
    }

    fn act_on_release(&self, release: TransitionToFree) {
        match release {
            TransitionToFree::Alive => {}
            TransitionToFree::Free | TransitionToFree::FreeOrphan => {
                // SAFETY: no other thread has access, since the reference was the last; the checker
                // verifies this.
                self.future.with_mut(|polls| unsafe { *polls += 1 });
                self.freed.fetch_add(1, Relaxed);
            }
        }
    }
}

#[test]
fn invariant_2_a_wake_around_a_poll_is_seen_by_a_poll() {
    for by_id in [false, true] {
        loom::model(move || {
            let coroutine = Coroutine::new(false, true);
            let waker = {
                let coroutine = coroutine.clone();
                thread::spawn(move || {
                    coroutine.data.store(1, Relaxed);
                    coroutine.wake(by_id);
                })
            };
            coroutine.run();
            waker.join().unwrap();
            assert_eq!(coroutine.seen.load(Relaxed), 1);
        });
    }
}

#[test]
fn invariant_2_two_wakes_of_a_blocked_coroutine_enqueue_it_once() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, false);
        let threads = [false, true].map(|by_id| {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                let wake = if by_id {
                    coroutine.word.wake_by_id(ID, false)
                } else {
                    coroutine.word.wake()
                };
                usize::from(wake == TransitionToReady::Enqueue)
            })
        });
        let enqueued: usize = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(enqueued, 1);
    });
}

#[test]
fn invariant_2_and_3_the_data_of_both_wakers_is_seen_and_polls_do_not_overlap() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        let threads = [false, true].map(|by_id| {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                coroutine.data.fetch_add(1, Relaxed);
                coroutine.wake(by_id);
            })
        });
        coroutine.run();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(coroutine.seen.load(Relaxed), 2);
        // SAFETY: no other thread has access, since all threads are joined.
        let polls = coroutine.future.with(|polls| unsafe { *polls });
        assert!((1..=3).contains(&polls), "{polls} polls for two wakes");
        assert!(coroutine.enqueued.load(Relaxed) < polls);
    });
}

#[test]
fn invariant_2_a_wake_that_gives_its_reference_back_is_seen_by_a_poll() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        coroutine.word.retain();
        let waker = {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                coroutine.data.store(1, Relaxed);
                coroutine.wake_by_value();
            })
        };
        coroutine.run();
        waker.join().unwrap();
        assert_eq!(coroutine.seen.load(Relaxed), 1);
        assert_eq!(coroutine.freed.load(Relaxed), 0);
        coroutine.release();
        assert_eq!(coroutine.freed.load(Relaxed), 1);
    });
}

#[test]
fn a_wake_around_the_exit_that_gives_its_reference_back_leaves_one_to_free() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        coroutine.word.retain();
        let waker = {
            let coroutine = coroutine.clone();
            thread::spawn(move || coroutine.wake_by_value())
        };
        exit(&coroutine);
        waker.join().unwrap();
        assert_eq!(coroutine.enqueued.load(Relaxed), 0);
        assert_eq!(coroutine.freed.load(Relaxed), 1);
    });
}

#[test]
fn a_cancellation_around_a_poll_cancels_exactly_once() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        let canceller = {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                if coroutine.word.wake_by_id(ID, true) == TransitionToReady::Enqueue {
                    coroutine.run();
                }
            })
        };
        coroutine.run();
        canceller.join().unwrap();
        assert_eq!(coroutine.cancelled.load(Relaxed), 1);
    });
}

/// The part of an exit that the polling thread does.
fn exit(coroutine: &Coroutine) {
    assert_eq!(coroutine.word.begin_poll(), TransitionToRunning::Poll);
    // SAFETY: the output is the poller's until the exit.
    coroutine
        .output
        .with_mut(|output| unsafe { *output = Some(7) });
    let detached = coroutine.word.is_detached();
    if detached {
        drop_output(coroutine);
    }
    match coroutine.word.exit(detached) {
        TransitionToExited::Alive => return coroutine.act_on_release(TransitionToFree::Alive),
        TransitionToExited::Free => return coroutine.act_on_release(TransitionToFree::Free),
        TransitionToExited::FreeOrphan => {
            return coroutine.act_on_release(TransitionToFree::FreeOrphan);
        }
        TransitionToExited::Detached => drop_output(coroutine),
        exit @ (TransitionToExited::Waiter | TransitionToExited::WaiterById) => {
            // SAFETY: a published waiter is the exiter's.
            let waiter = coroutine
                .waiter
                .with_mut(|waiter| unsafe { (*waiter).take() });
            assert_eq!(waiter, Some(3));
            coroutine.woken.fetch_add(1, Relaxed);
            if exit == TransitionToExited::WaiterById {
                return coroutine.has_read_id.store(true, Release);
            }
        }
    }
    coroutine.release();
}

/// The part of an exit that the handle's thread does once it has seen the exit.
fn release_exited(coroutine: &Coroutine) {
    if coroutine.word.has_waiter_by_id() {
        while !coroutine.has_read_id.load(Acquire) {
            thread::yield_now();
        }
    }
    if coroutine.word.has_only_handle_refs() {
        coroutine.act_on_release(TransitionToFree::Free);
    } else {
        coroutine.act_on_release(coroutine.word.release_handle());
    }
}

fn drop_output(coroutine: &Coroutine) {
    // SAFETY: the caller owns the output.
    let output = coroutine
        .output
        .with_mut(|output| unsafe { (*output).take() });
    assert_eq!(output, Some(7));
    coroutine.dropped.fetch_add(1, Relaxed);
}

/// Publishes the waker of the thread that awaits the handle.
fn register(coroutine: &Coroutine, by_id: bool) -> HandleTransition {
    // SAFETY: the waiter is unpublished, so it is the handle's.
    coroutine
        .waiter
        .with_mut(|waiter| unsafe { *waiter = Some(3) });
    let set = coroutine.word.set_waiter(by_id);
    if set == HandleTransition::Exited {
        // SAFETY: the waiter is unpublished, so it is the handle's.
        coroutine
            .waiter
            .with_mut(|waiter| unsafe { *waiter = None });
    }
    set
}

#[test]
fn a_handle_that_awaits_is_woken_or_sees_the_exit() {
    for by_id in [false, true] {
        loom::model(move || {
            let coroutine = Coroutine::new(true, true);
            let handle = {
                let coroutine = coroutine.clone();
                thread::spawn(move || {
                    let is_registered = register(&coroutine, by_id) == HandleTransition::Done;
                    // Tests for the exit once more, which may not be needed.
                    let sees_exit = coroutine.word.is_exited();
                    if sees_exit {
                        drop_output(&coroutine);
                        release_exited(&coroutine);
                    }
                    (is_registered, sees_exit)
                })
            };
            exit(&coroutine);
            let (is_registered, sees_exit) = handle.join().unwrap();
            assert_eq!(coroutine.woken.load(Relaxed), usize::from(is_registered));
            assert!(is_registered || sees_exit);
            if !sees_exit {
                assert!(coroutine.word.is_exited());
                drop_output(&coroutine);
                release_exited(&coroutine);
            }
            assert_eq!(coroutine.freed.load(Relaxed), 1);
        });
    }
}

#[test]
fn a_waker_and_the_handle_agree_on_which_is_last() {
    for by_id in [false, true] {
        loom::model(move || {
            let coroutine = Coroutine::new(true, true);
            coroutine.word.retain();
            assert_eq!(register(&coroutine, by_id), HandleTransition::Done);
            let waker = {
                let coroutine = coroutine.clone();
                thread::spawn(move || coroutine.release())
            };
            exit(&coroutine);
            drop_output(&coroutine);
            release_exited(&coroutine);
            waker.join().unwrap();
            assert_eq!(coroutine.freed.load(Relaxed), 1);
        });
    }
}

#[test]
fn a_handle_dropped_around_the_exit_leaves_one_owner_of_output_and_waiter() {
    let awaits = [None, Some(false), Some(true)];
    for (awaits, lends) in awaits.into_iter().flat_map(|by| [(by, false), (by, true)]) {
        loom::model(move || {
            let coroutine = Coroutine::new(true, true);
            let handle = {
                let coroutine = coroutine.clone();
                thread::spawn(move || {
                    if let Some(by_id) = awaits {
                        let _ = register(&coroutine, by_id);
                    }
                    // The steps of `JoinHandle::drop`.
                    let word = &coroutine.word;
                    if word.has_waiter() && word.clear_waiter() == HandleTransition::Done {
                        // SAFETY: the waiter was taken back, so it is the handle's.
                        coroutine
                            .waiter
                            .with_mut(|waiter| unsafe { *waiter = None });
                    }
                    let dropped = if lends {
                        word.drop_handle()
                    } else {
                        word.drop_handle_and_release()
                    };
                    if dropped == HandleTransition::Exited {
                        drop_output(&coroutine);
                        release_exited(&coroutine);
                    } else if lends {
                        coroutine.release();
                    }
                })
            };
            exit(&coroutine);
            handle.join().unwrap();
            assert_eq!(coroutine.dropped.load(Relaxed), 1);
            assert_eq!(coroutine.freed.load(Relaxed), 1);
            // SAFETY: no other thread has access, since all threads are joined.
            assert!(
                coroutine
                    .waiter
                    .with(|waiter| unsafe { (*waiter).is_none() })
            );
        });
    }
}

#[test]
fn the_last_of_three_references_frees_after_all_use() {
    loom::model(|| {
        let coroutine = Coroutine::new(true, true);
        coroutine.word.retain();
        let threads = [0, 1].map(|_| {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                // SAFETY: the caller holds a reference.
                coroutine.future.with(|polls| unsafe { *polls });
                coroutine.release();
            })
        });
        // SAFETY: the caller holds a reference.
        coroutine.future.with(|polls| unsafe { *polls });
        coroutine.release();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(coroutine.freed.load(Relaxed), 1);
    });
}

#[test]
fn an_old_id_never_wakes_the_next_coroutine_of_the_slot() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        let other = {
            let coroutine = coroutine.clone();
            thread::spawn(move || coroutine.word.wake_by_id(ID, false))
        };
        assert_eq!(coroutine.word.begin_poll(), TransitionToRunning::Poll);
        assert_eq!(coroutine.word.exit(true), TransitionToExited::Free);
        assert!(coroutine.word.retire());
        assert_eq!(coroutine.word.init(false, false), ID + 1);
        assert_ne!(other.join().unwrap(), TransitionToReady::Enqueue);
        // The old id has not changed the new coroutine.
        assert_eq!(coroutine.word.wake(), TransitionToReady::Enqueue);
        assert_eq!(coroutine.word.begin_poll(), TransitionToRunning::Poll);
        assert_eq!(coroutine.word.end_poll(), TransitionToBlocked::Blocked);
    });
}

#[test]
fn a_reference_by_id_is_to_the_living_coroutine_or_refused() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        let other = {
            let coroutine = coroutine.clone();
            thread::spawn(move || {
                if coroutine.word.retain_by_id(ID) {
                    // SAFETY: the caller holds a reference.
                    coroutine.data.load(Relaxed);
                    coroutine.release();
                }
            })
        };
        assert_eq!(coroutine.word.begin_poll(), TransitionToRunning::Poll);
        match coroutine.word.exit(true) {
            TransitionToExited::Alive => {}
            TransitionToExited::Free => coroutine.act_on_release(TransitionToFree::Free),
            other => panic!("unexpected duty after the exit: {other:?}"),
        }
        other.join().unwrap();
        assert_eq!(coroutine.freed.load(Relaxed), 1);
        assert!(!coroutine.word.retain_by_id(ID));
    });
}

#[test]
fn the_last_reference_and_the_end_of_the_domain_agree_on_which_is_last() {
    loom::model(|| {
        let coroutine = Coroutine::new(false, true);
        assert_eq!(coroutine.word.begin_poll(), TransitionToRunning::Poll);
        assert_eq!(coroutine.word.exit(false), TransitionToExited::Detached);
        let other = {
            let coroutine = coroutine.clone();
            thread::spawn(move || coroutine.word.release(1))
        };
        let marked = coroutine.word.mark_orphan();
        let release = other.join().unwrap();
        let expected = if marked {
            TransitionToFree::FreeOrphan
        } else {
            TransitionToFree::Free
        };
        assert_eq!(release, expected);
    });
}
