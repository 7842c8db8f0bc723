//! Loans along join handles: a coroutine lends its level to those that it awaits.
//!
//! A wait for a handle has no future of its own. `timeout(d, &mut handle)` gives the wait up, keeps
//! the handle, and tells no one: the poll that gives up has polled the handle, too. So the rule is:
//! **a coroutine awaits the handles that it polls again.** Before a coroutine that lends blocks, it
//! is polled once more, and each loan ends whose handle that poll did not ask.
//!
//! ```text
//!   none ── the handle is pending ──► lent ── about to block: one more poll ─┬─► polled: lent
//!                                                                            └─► else: none
//! ```
//!
//! The list holds the loans that change a level: the waiter is more urgent than the awaited
//! coroutine's own level. [`reprio`](crate::Domain::reprio) of an awaited coroutine wakes its
//! waiter, whose poll decides again. A handle that is polled with another waker than the one of
//! the coroutine around it (in a set of futures that polls only those that were woken) is not in
//! the list: its loan ends with the handle.
//!
//! Cost: one test of a bit for a poll of a coroutine that lends nothing. For the others a poll more
//! each time they block, and for each handle polled a lock and a search in a tree of all loans.

use alloc::collections::BTreeMap;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::coroutine::Slot;
use crate::domain::Inner;
use crate::host::{Critical, Host};
use crate::id::CoroutineId;
use crate::lock::Lock;
use crate::sync::Ordering::Relaxed;
use crate::vcpu::id_of;
use crate::waker;

/// The ids of the waiter and of the awaited coroutine; true: polled since the last [`begin`].
type Loans = BTreeMap<(u64, u64), bool>;

/// All loans of a domain that matter.
pub(crate) struct AwaitLoans {
    lock: Lock,
    loans: UnsafeCell<Loans>,
}

// SAFETY: the loans are touched only in `AwaitLoans::with`, under the lock.
unsafe impl Sync for AwaitLoans {}

impl AwaitLoans {
    pub(crate) fn new() -> AwaitLoans {
        AwaitLoans {
            lock: Lock::new(),
            loans: UnsafeCell::new(Loans::new()),
        }
    }

    /// Calls `f` under the lock. In a critical section.
    fn with<H: Host, R>(&self, host: &H, f: impl FnOnce(&mut Loans) -> R) -> R {
        let _guard = self.lock.lock(host);
        // SAFETY: the lock is held, and `f` does not come back here.
        f(unsafe { &mut *self.loans.get() })
    }
}

/// Sets the level that an awaited coroutine is lent. `waiter`: the loan is listed as one of that
/// coroutine, which is being polled by the calling thread.
///
/// # Safety
/// The caller is the handle of the awaited coroutine, or was until now, and holds a reference.
#[inline]
pub(crate) unsafe fn lend<H: Host>(
    domain: &Inner<H>,
    awaited: NonNull<Slot<H>>,
    level: u8,
    waiter: Option<NonNull<Slot<H>>>,
) {
    // SAFETY: referenced, hence alive.
    let block = unsafe { awaited.as_ref() };
    let before = if waiter.is_none() && !block.borrows() {
        // Not in the list, so only the handle writes it.
        let before = block.join_boost.load(Relaxed);
        if before != level {
            block.join_boost.store(level, Relaxed);
        }
        before
    } else {
        // SAFETY: passed on.
        unsafe { lend_listed(domain, awaited, level, waiter) }
    };
    let effective = block.level().get();
    if before != level && (level < effective || before <= effective) {
        // SAFETY: passed on.
        unsafe { change_level(domain, awaited) };
    }
}

/// Returns the level that was lent before.
///
/// # Safety
/// As [`lend`].
#[inline(never)]
unsafe fn lend_listed<H: Host>(
    domain: &Inner<H>,
    awaited: NonNull<Slot<H>>,
    level: u8,
    waiter: Option<NonNull<Slot<H>>>,
) -> u8 {
    // SAFETY: referenced, hence alive.
    let block = unsafe { awaited.as_ref() };
    let _critical = Critical::<H>::enter();
    domain.await_loans.with(&domain.host, |loans| {
        let before = block.join_boost.load(Relaxed);
        block.join_boost.store(level, Relaxed);
        block.set_borrows(waiter.is_some());
        if let Some(waiter) = waiter {
            // SAFETY: it is being polled, hence alive.
            unsafe { waiter.as_ref() }.set_has_loans(true);
            loans.insert((id_of(waiter).to_u64(), id_of(awaited).to_u64()), true);
        }
        before
    })
}

/// # Safety
/// As [`lend`].
#[inline(never)]
unsafe fn change_level<H: Host>(domain: &Inner<H>, awaited: NonNull<Slot<H>>) {
    // SAFETY: passed on.
    unsafe { domain.resettle(awaited, true) };
}

/// Begins the last poll of a coroutine before it blocks: from here on the list notes which handles
/// are polled.
///
/// # Safety
/// The caller owns the coroutine.
pub(crate) unsafe fn begin<H: Host>(domain: &Inner<H>, waiter: NonNull<Slot<H>>) {
    let from = id_of(waiter).to_u64();
    let _critical = Critical::<H>::enter();
    domain.await_loans.with(&domain.host, |loans| {
        let all = loans.range_mut((from, 0)..=(from, u64::MAX));
        all.for_each(|(_, polled)| *polled = false);
    });
}

/// Ends the loans of a coroutine whose handles were not polled since [`begin`], or `all` of them if
/// the coroutine exits.
///
/// # Safety
/// The caller owns the coroutine.
pub(crate) unsafe fn end<H: Host>(domain: &Inner<H>, waiter: NonNull<Slot<H>>, all: bool) {
    let from = id_of(waiter).to_u64();
    let mut after = 0;
    let mut keeps = false;
    loop {
        let critical = Critical::<H>::enter();
        let ended = domain.await_loans.with(&domain.host, |loans| {
            let mut rest = loans.range((from, after)..=(from, u64::MAX));
            let (&(_, awaited), _) = rest.find(|(_, polled)| {
                let keep = **polled && !all;
                keeps |= keep;
                !keep
            })?;
            loans.remove(&(from, awaited));
            after = awaited;
            // SAFETY: passed on, with the lock.
            Some(unsafe { take_back(domain, from, awaited) })
        });
        drop(critical);
        let Some(ended) = ended else { break };
        if let Some(awaited) = ended {
            // SAFETY: `take_back` has taken a reference.
            unsafe {
                domain.resettle(awaited, true);
                waker::release(awaited);
            }
        }
    }
    if !keeps {
        // SAFETY: the caller owns it, hence it is alive.
        unsafe { waiter.as_ref() }.set_has_loans(false);
    }
}

/// Wakes the waiter of a coroutine that has become less urgent, unless it lends already.
#[cold]
pub(crate) fn less_urgent<H: Host>(domain: &Inner<H>, awaited: &Slot<H>) {
    if !awaited.borrows() {
        // It may have given up, or exited, meanwhile.
        let waiter = awaited.waiter.load(Relaxed).addr() as u64;
        let _ = domain.wake(CoroutineId::from_u64(waiter));
    }
}

/// Takes back the level that `from` has lent, unless the coroutine is dead or awaited by another
/// one now. Returns the coroutine's slot with a reference.
///
/// # Safety
/// The lock of the loans is held.
unsafe fn take_back<H: Host>(
    domain: &Inner<H>,
    from: u64,
    awaited: u64,
) -> Option<NonNull<Slot<H>>> {
    let id = CoroutineId::from_u64(awaited);
    let place = domain.table.find(id.index())?;
    // SAFETY: slots live as long as the table.
    let block = unsafe { place.as_ref() };
    if !block.word.retain_by_id(id.generation()) {
        return None;
    }
    if block.borrows() && block.is_awaited_by(from) {
        block.join_boost.store(Slot::<H>::NO_BOOST, Relaxed);
        block.set_borrows(false);
    }
    Some(place)
}
