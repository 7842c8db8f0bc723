//! Futexes: let threads of a program wait at an address. They are the kernel's half of mutexes and
//! condition variables.
//!
//! ```text
//!  wait: lock of the bucket ─ is the word `value`? ─ no ─► CHANGED
//!                              yes ─► enqueue … woken, or timed out
//!  wake: (the program has changed the word) lock of the bucket ─ dequeue, wake
//! ```
//!
//! No wake is lost. A waiter compares the word under the lock under which a waker looks for
//! waiters, and the program changes the word before it calls the waker. So either the waiter sees
//! the change, or the waker sees the waiter.
//!
//! An address is local to its process. Waiters are in one of [`BUCKETS`] lists by process and
//! address, in the order of arrival, so a wake costs O(waiters of the bucket), which is O(1) while
//! there are fewer waiters than buckets. Each waiter is a kernel coroutine that executes a system
//! call, so the limit of calls in flight bounds the number of waiters; a call that is dropped
//! removes its entry.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};

use os_abi::Error;
use os_abi::number::{CHANGED, TIMED_OUT, WOKEN};

use crate::arch::lock::IrqLock;
use crate::process::Process;
use crate::sleep::{Sleep, sleep_until};

/// Number of buckets: as many as values of the eight bits that `bucket` takes from the hash.
const BUCKETS: usize = 256;

struct Waiter {
    ticket: u64,
    process: usize,
    address: usize,
    waker: Waker,
}

static WAITING: [IrqLock<VecDeque<Waiter>>; BUCKETS] =
    [const { IrqLock::new(VecDeque::new()) }; BUCKETS];

static TICKETS: AtomicU64 = AtomicU64::new(0);

fn bucket(process: usize, address: usize) -> &'static IrqLock<VecDeque<Waiter>> {
    // Fibonacci hashing puts neighbouring words into different buckets.
    let key = (process as u64) << 40 ^ (address as u64 >> 2);
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    &WAITING[hash as usize]
}

/// Waits for a wake at an address if the word there is `value`, at most until `deadline`, in ticks.
///
/// # Errors
/// [`Error::BadAddress`], [`Error::NoProcess`], [`Error::OutOfMemory`].
pub(crate) fn wait(process: Arc<Process>, address: usize, value: u32, deadline: u64) -> Wait {
    Wait {
        process,
        address,
        value,
        ticket: 0,
        sleep: sleep_until(deadline),
        // A deadline that is never reached needs no timer.
        needs_timer: deadline != u64::MAX,
    }
}

pub(crate) struct Wait {
    process: Arc<Process>,
    address: usize,
    value: u32,
    /// Ticket of the entry in the bucket; 0 before there is an entry.
    ticket: u64,
    sleep: Sleep,
    needs_timer: bool,
}

impl Wait {
    /// Enters the bucket. Returns false if the word is not `value`.
    fn enqueue(&mut self, waker: &Waker) -> Result<bool, Error> {
        let space = self.process.space()?;
        let process_number = self.process.number();
        let mut waiting = bucket(process_number, self.address).lock();
        if space.load_word(self.address)? != self.value {
            return Ok(false);
        }
        waiting.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.ticket = TICKETS.fetch_add(1, Relaxed) + 1;
        waiting.push_back(Waiter {
            ticket: self.ticket,
            process: process_number,
            address: self.address,
            waker: waker.clone(),
        });
        Ok(true)
    }

    fn is_waiting(&self) -> bool {
        let waiting = bucket(self.process.number(), self.address).lock();
        waiting.iter().any(|waiter| waiter.ticket == self.ticket)
    }

    fn dequeue(&mut self) {
        let mut waiting = bucket(self.process.number(), self.address).lock();
        let index = waiting
            .iter()
            .position(|waiter| waiter.ticket == self.ticket);
        let entry = index.and_then(|index| waiting.remove(index));
        if waiting.is_empty() {
            // An empty list keeps no memory.
            *waiting = VecDeque::new();
        }
        drop(waiting);
        drop(entry);
        self.ticket = 0;
    }
}

/// The result says how the wait ended: [`CHANGED`] if the word was not `value`, [`WOKEN`], or
/// [`TIMED_OUT`].
impl Future for Wait {
    type Output = Result<isize, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.ticket == 0 {
            match self.enqueue(cx.waker()) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(false) => return Poll::Ready(Ok(CHANGED)),
                Ok(true) => {}
            }
        } else if !self.is_waiting() {
            self.ticket = 0;
            return Poll::Ready(Ok(WOKEN));
        }
        if self.needs_timer && Pin::new(&mut self.sleep).poll(cx).is_ready() {
            let is_waiting = self.is_waiting();
            self.dequeue();
            return Poll::Ready(Ok(if is_waiting { TIMED_OUT } else { WOKEN }));
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if self.ticket != 0 {
            self.dequeue();
        }
    }
}

/// Wakes at most `count` waiters at an address, oldest first; returns how many it has woken.
pub(crate) fn wake(process: &Process, address: usize, count: usize) -> usize {
    let process_number = process.number();
    let mut woken = 0;
    while woken < count {
        let mut waiting = bucket(process_number, address).lock();
        let index = waiting
            .iter()
            .position(|waiter| waiter.process == process_number && waiter.address == address);
        let Some(waiter) = index.and_then(|index| waiting.remove(index)) else {
            break;
        };
        if waiting.is_empty() {
            *waiting = VecDeque::new();
        }
        drop(waiting);
        waiter.waker.wake();
        woken += 1;
    }
    woken
}
