//! Kernel threads, with the feature `kernel-threads`: the baseline for comparisons with coroutines.
//! Each call that waits has its own kernel stack; the hart switches to that stack and back, and
//! saves the callee-saved registers.
//!
//! ```text
//!  poll of the call's coroutine ── exchange ─► thread: polls the call on its stack
//!         ▲                                       │ it waits, or has ended
//!         └────────────────── exchange ───────────┘
//! ```
//!
//! The scheduler still picks the next coroutine, from queues per hart, so the baseline takes no
//! additional lock. A process keeps the stacks that its calls have needed, like a kernel in which
//! each thread has a permanent stack.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::future::Future;
use core::marker::PhantomPinned;
use core::pin::Pin;
use core::ptr::null_mut;
use core::task::{Context, Poll};

use os_abi::Error;

use super::lock::IrqLock;
use crate::memory::dma::Dma;
use crate::process::Share;
use crate::process::share::{Charge, Resource};

/// Size of a stack in bytes.
const STACK: usize = 4 * 4096;
/// Size of the saved registers in bytes (ra, s0 to s11), rounded up to the alignment of a stack.
const SAVED: usize = 14 * 8;
/// Lowest word of a stack that has not overflowed.
const CANARY: [u8; 8] = *b"upshift!";

global_asm!(
    r"
    .global __exchange_stacks
__exchange_stacks:
    addi    sp, sp, -{saved}
    sd      ra, 0(sp)
    sd      s0, 8(sp)
    sd      s1, 16(sp)
    sd      s2, 24(sp)
    sd      s3, 32(sp)
    sd      s4, 40(sp)
    sd      s5, 48(sp)
    sd      s6, 56(sp)
    sd      s7, 64(sp)
    sd      s8, 72(sp)
    sd      s9, 80(sp)
    sd      s10, 88(sp)
    sd      s11, 96(sp)
    mv      t0, sp
    ld      sp, 0(a0)
    sd      t0, 0(a0)
    ld      ra, 0(sp)
    ld      s0, 8(sp)
    ld      s1, 16(sp)
    ld      s2, 24(sp)
    ld      s3, 32(sp)
    ld      s4, 40(sp)
    ld      s5, 48(sp)
    ld      s6, 56(sp)
    ld      s7, 64(sp)
    ld      s8, 72(sp)
    ld      s9, 80(sp)
    ld      s10, 88(sp)
    ld      s11, 96(sp)
    addi    sp, sp, {saved}
    ret

    .global __begin_thread
__begin_thread:
    mv      a0, s0
    jr      s1
    ",
    saved = const SAVED,
);

unsafe extern "C" {
    /// Switches to the stack pointer in `*saved_sp`, and stores the current stack pointer there.
    fn __exchange_stacks(saved_sp: *mut usize);
    /// Entry of a thread: calls the address in s1 with s0 as argument.
    fn __begin_thread();
}

struct Stack {
    frames: Dma,
    _charge: Charge,
}

/// Free stacks of a process. All stacks of a process are charged to its share.
pub(crate) struct Stacks {
    free: IrqLock<Vec<Stack>>,
    share: Arc<Share>,
}

impl Stacks {
    pub(crate) fn new(share: Arc<Share>) -> Arc<Stacks> {
        let free = IrqLock::new(Vec::new());
        Arc::new(Stacks { free, share })
    }

    fn take(&self) -> Result<Stack, Error> {
        let free = self.free.lock().pop();
        if let Some(stack) = free {
            return Ok(stack);
        }
        let charge = self.share.charge(Resource::Memory, STACK >> 10)?;
        Ok(Stack {
            frames: Dma::new(STACK).map_err(|_| Error::OutOfMemory)?,
            _charge: charge,
        })
    }

    fn give_back(&self, stack: Stack) {
        let mut stacks = self.free.lock();
        if stacks.try_reserve(1).is_ok() {
            stacks.push(stack);
        }
    }
}

/// A future that is polled on its own stack.
pub(crate) struct OnThread<F: Future> {
    call: F,
    result: Option<F::Output>,
    /// The stack; `None` after the drop.
    stack: Option<Stack>,
    stacks: Arc<Stacks>,
    /// The stack pointer of the thread while it waits, the stack pointer of the hart while it runs;
    /// 0 before the thread has begun.
    saved_sp: usize,
    /// Context of the current poll.
    context: *mut Context<'static>,
    _pinned: PhantomPinned,
}

// SAFETY: the pointer `context` is used only during a poll, by the hart that polls.
unsafe impl<F: Future + Send> Send for OnThread<F> where F::Output: Send {}

impl<F: Future> OnThread<F> {
    /// Creates a future that polls `call` on one of the `stacks`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the machine or the share has no memory for a stack.
    pub(crate) fn new(call: F, stacks: Arc<Stacks>) -> Result<OnThread<F>, Error> {
        Ok(OnThread {
            call,
            result: None,
            stack: Some(stacks.take()?),
            stacks,
            saved_sp: 0,
            context: null_mut(),
            _pinned: PhantomPinned,
        })
    }

    /// Entry of the thread: polls the call each time the thread is resumed.
    extern "C" fn run(this: *mut OnThread<F>) -> ! {
        loop {
            // SAFETY: `poll` waits for the exchange below, and does not use `*this` meanwhile; the
            // call is pinned, because `this` is; the context is that of the current poll.
            unsafe {
                let call = Pin::new_unchecked(&mut (*this).call);
                if let Poll::Ready(result) = call.poll(&mut *(*this).context) {
                    (*this).result = Some(result);
                }
                __exchange_stacks(&raw mut (*this).saved_sp);
            }
        }
    }
}

impl<F: Future> Future for OnThread<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: no field is moved out of `this`.
        let this = unsafe { self.get_unchecked_mut() };
        if this.saved_sp == 0 {
            let run: extern "C" fn(*mut OnThread<F>) -> ! = OnThread::<F>::run;
            let words = [
                __begin_thread as *const () as usize,
                &raw mut *this as usize,
                run as usize,
            ];
            let Some(stack) = &mut this.stack else {
                return Poll::Pending;
            };
            let stack = &mut stack.frames;
            let frame = stack.len() - SAVED;
            stack[..CANARY.len()].copy_from_slice(&CANARY);
            this.saved_sp = stack.as_ptr().addr() + frame;
            for (bytes, word) in stack[frame..].chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
        }
        this.context = (&raw mut *cx).cast();
        let this: *mut OnThread<F> = this;
        // SAFETY: `saved_sp` is the stack pointer that an exchange, or the preparation above, has
        // stored there; the thread returns by an exchange, which restores the registers.
        unsafe { __exchange_stacks(&raw mut (*this).saved_sp) };
        // SAFETY: the thread waits for the next exchange, so no other reference is in use.
        let this = unsafe { &mut *this };
        let is_whole = |stack: &Stack| stack.frames[..CANARY.len()] == CANARY;
        assert!(
            this.stack.as_ref().is_some_and(is_whole),
            "the stack of a kernel thread is full"
        );
        this.result.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<F: Future> Drop for OnThread<F> {
    fn drop(&mut self) {
        // The stack contains only the loop of `run`, which has no values to drop.
        if let Some(stack) = self.stack.take() {
            self.stacks.give_back(stack);
        }
    }
}
