//! A lock-free list by which the ring's thread passes completions to the handle of an operation.
//! The list is one atomic word in the operation's slot. The word also says whether the handle's
//! task waits for a completion.
//!
//! ```text
//!                1 register              3 claim              4 deliver
//!   EMPTY ────────────────────▶ WAITING ─────────▶ CLAIMED ─────────────▶ list of nodes
//!    ▲ ▲  ◀────────────────────                                              │    ▲
//!    │ │        2 withdraw                                                   │    │ 5 append
//!    │ └───────────────────────────────── 6 take ────────────────────────────┤    │
//!    └─────────── 5 append (no waiter: straight to the list) ────────────────┴────┘
//! ```
//!
//! The word has the size of a pointer. It has **one producer**, the ring's thread (3, 4, 5), and
//! **one consumer**, which holds the handle by `&mut`, on any thread (1, 2, 6). The list of a
//! one-shot operation has one node, the slot itself.
//!
//! The word also says which side may touch the *waker cell* beside it. In `EMPTY` and *list* this
//! is the consumer, in `CLAIMED` the producer. From `WAITING`, the side that makes the transition
//! (2 or 3) gets the cell.
//!
//! A consumer that finds `CLAIMED` must not spin until the producer continues. Under `SCHED_FIFO`
//! the consumer's thread may have the higher priority on the same CPU, and would spin forever. The
//! consumer wakes itself instead, and tries again when it is polled.
//!
//! Cost: delivering is one read-modify-write. On the ring's thread (`is_owner` is true) the
//! consumer's transitions are plain loads and stores, because producer and consumer are the same
//! thread; elsewhere each is one read-modify-write.

use crate::sync::{AtomicPtr, Ordering};
use std::ptr;
use std::task::Waker;

pub(crate) struct Inbox<N> {
    word: AtomicPtr<N>,
}

#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Withdrawn {
    /// The waker cell belongs to the consumer; nothing has arrived.
    Empty,
    /// Nodes have arrived, and the consumer should take them.
    Ready,
    /// A node is arriving at this moment. The consumer should wake itself and try again.
    Busy,
}

#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Registered {
    /// The next delivery takes the waker.
    Waiting,
    /// A node has arrived meanwhile, and the consumer should take it. The waker cell still belongs
    /// to the consumer.
    Ready,
}

fn empty<N>() -> *mut N {
    ptr::null_mut()
}

fn waiting<N>() -> *mut N {
    ptr::without_provenance_mut(1)
}

fn claimed<N>() -> *mut N {
    ptr::without_provenance_mut(2)
}

impl<N> Inbox<N> {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicPtr::new(empty()),
        }
    }

    /// Resets the word to `EMPTY`. No other thread may use the slot during the call.
    #[inline]
    pub(crate) fn reset(&self) {
        self.word.store(empty(), Ordering::Relaxed);
    }

    /// Adds `node` (3–5). `link(next)` sets the successor of `node`. `take_waker` empties the waker
    /// cell, and is called only while the cell belongs to the producer. The caller wakes the
    /// returned waker. Producer only.
    #[inline]
    pub(crate) fn push(
        &self,
        node: *mut N,
        link: impl Fn(*mut N),
        take_waker: impl FnOnce() -> Option<Waker>,
    ) -> Option<Waker> {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let claim = seen == waiting();
            let next = if claim {
                claimed()
            } else {
                link(seen);
                node
            };
            // AcqRel: acquire the waker cell, written before WAITING; release the node.
            match self
                .word
                .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if claim => {
                    let waker = take_waker();
                    link(empty());
                    // Only the producer leaves CLAIMED, so a store suffices.
                    self.word.store(node, Ordering::Release);
                    return waker;
                }
                Ok(_) => return None,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether nothing has arrived and no waker is registered. Consumer only.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.word.load(Ordering::Relaxed) == empty()
    }

    #[inline]
    pub(crate) fn has_arrived(&self) -> bool {
        let seen = self.word.load(Ordering::Acquire);
        seen != empty() && seen != waiting() && seen != claimed()
    }

    /// Takes the list (6), newest node first; null if it is empty. Consumer only.
    #[inline]
    pub(crate) fn take(&self, is_owner: bool) -> *mut N {
        if !self.has_arrived() {
            return empty();
        }
        if is_owner {
            let list = self.word.load(Ordering::Relaxed);
            self.word.store(empty(), Ordering::Relaxed);
            list
        } else {
            // The producer only adds to a list, so the swap still finds a list.
            self.word.swap(empty(), Ordering::AcqRel)
        }
    }

    /// Acquires the waker cell (2). Consumer only.
    #[inline]
    pub(crate) fn withdraw(&self, is_owner: bool) -> Withdrawn {
        let mut seen = self.word.load(Ordering::Acquire);
        if seen == waiting() {
            if is_owner {
                self.word.store(empty(), Ordering::Relaxed);
                return Withdrawn::Empty;
            }
            match self
                .word
                .compare_exchange(seen, empty(), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Withdrawn::Empty,
                Err(now) => seen = now,
            }
        }
        if seen == empty() {
            Withdrawn::Empty
        } else if seen == claimed() {
            Withdrawn::Busy
        } else {
            Withdrawn::Ready
        }
    }

    /// Registers the waker in the cell (1), after [`Withdrawn::Empty`]. Consumer only.
    #[inline]
    pub(crate) fn register(&self, is_owner: bool) -> Registered {
        if is_owner {
            self.word.store(waiting(), Ordering::Release);
            return Registered::Waiting;
        }
        match self
            .word
            .compare_exchange(empty(), waiting(), Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Registered::Waiting,
            Err(_) => Registered::Ready,
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::{Cell, UnsafeCell};
    use loom::future::block_on;
    use loom::sync::Arc;
    use std::future::poll_fn;
    use std::task::Poll;

    struct Node {
        next: Cell<*mut Node>,
        value: Cell<u32>,
    }

    struct Shared {
        inbox: Inbox<Node>,
        waker: UnsafeCell<Option<Waker>>,
        nodes: [Node; 2],
    }

    // SAFETY: loom checks every access to the cells.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    impl Shared {
        fn new() -> Arc<Self> {
            let node = || Node {
                next: Cell::new(ptr::null_mut()),
                value: Cell::new(0),
            };
            Arc::new(Shared {
                inbox: Inbox::new(),
                waker: UnsafeCell::new(None),
                nodes: [node(), node()],
            })
        }

        fn produce(&self, index: usize, value: u32) {
            let node = &self.nodes[index];
            node.value.set(value);
            let waker = self.inbox.push(
                ptr::from_ref(node).cast_mut(),
                |next| node.next.set(next),
                // SAFETY: in CLAIMED the cell belongs to the producer, so no other thread uses it.
                || self.waker.with_mut(|cell| unsafe { (*cell).take() }),
            );
            if let Some(waker) = waker {
                waker.wake();
            }
        }

        fn poll(&self, cx: &mut std::task::Context<'_>) -> Poll<u32> {
            loop {
                let mut list = self.inbox.take(false);
                if !list.is_null() {
                    let mut sum = 0;
                    while !list.is_null() {
                        // SAFETY: nodes live as long as `self`, and taken nodes belong to the
                        // consumer.
                        let node = unsafe { &*list };
                        sum += node.value.get();
                        list = node.next.get();
                    }
                    return Poll::Ready(sum);
                }
                match self.inbox.withdraw(false) {
                    Withdrawn::Ready => continue,
                    Withdrawn::Busy => {
                        cx.waker().wake_by_ref();
                        // Tells loom that the producer must move before this is worth repeating.
                        loom::thread::yield_now();
                        return Poll::Pending;
                    }
                    Withdrawn::Empty => {}
                }
                // SAFETY: in EMPTY the cell belongs to the consumer, so no other thread uses it.
                self.waker
                    .with_mut(|cell| unsafe { *cell = Some(cx.waker().clone()) });
                match self.inbox.register(false) {
                    Registered::Waiting => return Poll::Pending,
                    Registered::Ready => continue,
                }
            }
        }
    }

    #[test]
    fn a_completion_is_seen_whenever_it_arrives() {
        loom::model(|| {
            let shared = Shared::new();
            let producer = shared.clone();
            let thread = loom::thread::spawn(move || producer.produce(0, 7));
            assert_eq!(block_on(poll_fn(|cx| shared.poll(cx))), 7);
            thread.join().unwrap();
        });
    }

    #[test]
    fn two_completions_of_a_stream_are_both_seen() {
        // The bound shortens the run of the model, which also passes without the bound.
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Shared::new();
            let producer = shared.clone();
            let thread = loom::thread::spawn(move || {
                producer.produce(0, 1);
                producer.produce(1, 2);
            });
            let mut sum = 0;
            while sum < 3 {
                sum += block_on(poll_fn(|cx| shared.poll(cx)));
            }
            assert_eq!(sum, 3);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_waker_is_withdrawn_or_taken_never_both() {
        loom::model(|| {
            let shared = Shared::new();
            // SAFETY: the cell is not shared yet.
            shared
                .waker
                .with_mut(|cell| unsafe { *cell = Some(Waker::noop().clone()) });
            assert_eq!(shared.inbox.register(false), Registered::Waiting);
            let producer = shared.clone();
            let thread = loom::thread::spawn(move || producer.produce(0, 1));
            match shared.inbox.withdraw(false) {
                // SAFETY: in EMPTY the cell belongs to the consumer, so no other thread uses it.
                Withdrawn::Empty => {
                    assert!(
                        shared
                            .waker
                            .with_mut(|cell| unsafe { (*cell).take() })
                            .is_some()
                    );
                }
                Withdrawn::Ready | Withdrawn::Busy => {}
            }
            thread.join().unwrap();
            assert!(shared.inbox.has_arrived());
        });
    }
}
