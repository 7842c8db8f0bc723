//! The io_uring driver: the two queues that are shared with the kernel, and the system call
//! `io_uring_enter`.
//!
//! Only the *owner*, the thread that uses the ring at the moment, may call the driver. The *issuer*
//! is the thread that made the ring, and the only thread that makes system calls for it
//! (`IORING_SETUP_SINGLE_ISSUER` requires this). An owner that is not the issuer hands its system
//! calls to a [`Proxy`].
//!
//! The views of the queues are created once, with the instance, so pushing an entry is a copy of 64
//! bytes and two additions, and the tail is published once per [`enter`](Uring::enter). Only
//! [`close`](Uring::close) frees the instance; no method may be called after it.

use crate::config::{Config, Mode};
use crate::owner::{Proxy, this_thread};
use crate::remote::Kick;
use crate::setup::{build, explain};
use crate::watch::RingWatch;
use io_uring::cqueue::{CompletionQueue, CompletionStatus};
use io_uring::squeue::{Entry, SubmissionQueue};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Submitter, cqueue};
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub(crate) struct Uring {
    ring: ManuallyDrop<Arc<IoUring>>,
    /// The thread that made the instance.
    issuer: usize,
    proxy: OnceCell<Box<dyn Proxy>>,
    // The next three fields point into `*ring`. They own nothing and are never dropped, so they may
    // outlive the instance.
    submitter: UnsafeCell<ManuallyDrop<Submitter<'static>>>,
    sq: UnsafeCell<ManuallyDrop<SubmissionQueue<'static>>>,
    cq: UnsafeCell<ManuallyDrop<CompletionQueue<'static>>>,
    status: CompletionStatus,
    mode: Mode,
    wait_flags: EnterFlags,
    skips_success: bool,
    pub(crate) enters: Cell<u64>,
    pub(crate) submitted: Cell<u64>,
}

impl Uring {
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        let (ring, mode) = build(config)?;
        let ring = ManuallyDrop::new(Arc::new(ring));
        // SAFETY: the instance stays valid until `close` releases this reference, and no method is
        // called after `close`.
        let shared: &'static IoUring = unsafe { &*Arc::as_ptr(&ring) };
        let mut submitter = shared.submitter();
        // Saves the lookup of the descriptor in each enter (Linux 5.18). An error is harmless.
        let _ = submitter.register_ring_fd();
        // SAFETY: the call requires that no other view of the submission queue is in use; this is
        // the only one.
        let sq = unsafe { shared.submission_shared() };
        // SAFETY: the call requires that no other view of the completion queue is in use; this is
        // the only one.
        let cq = unsafe { shared.completion_shared() };
        // SAFETY: the status is used only until `close`, while the instance lives.
        let status = unsafe { cq.status() };
        let params = shared.params();
        let mut wait_flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if params.is_feature_no_iowait() {
            wait_flags |= EnterFlags::NO_IOWAIT;
        }
        let uring = Self {
            ring,
            issuer: this_thread(),
            proxy: OnceCell::new(),
            submitter: UnsafeCell::new(ManuallyDrop::new(submitter)),
            sq: UnsafeCell::new(ManuallyDrop::new(sq)),
            cq: UnsafeCell::new(ManuallyDrop::new(cq)),
            status,
            mode,
            wait_flags,
            skips_success: params.is_feature_skip_cqe_on_success(),
            enters: Cell::new(0),
            submitted: Cell::new(0),
        };
        // A seccomp filter may allow an instance to be made but not to be entered.
        if let Err(error) = uring.enter(true) {
            // SAFETY: nothing is in flight, and this is the last use of `uring`.
            unsafe { uring.close() };
            return Err(explain("cannot enter io_uring", &error));
        }
        uring.enters.set(0);
        Ok(uring)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns whether the kernel can suppress the completion of a request that succeeds.
    pub(crate) fn skips_success(&self) -> bool {
        self.skips_success
    }

    #[inline]
    #[expect(
        clippy::mut_from_ref,
        reason = "only the owner calls this, and each borrow ends with its statement"
    )]
    fn sq(&self) -> &mut SubmissionQueue<'static> {
        // SAFETY: this is the only reference, because only the owner uses the queue, and every use
        // is a single call that runs no user code.
        unsafe { &mut *self.sq.get() }
    }

    #[inline]
    #[expect(
        clippy::mut_from_ref,
        reason = "only the owner calls this, and each borrow ends with its statement"
    )]
    fn cq(&self) -> &mut CompletionQueue<'static> {
        // SAFETY: this is the only reference, because only the owner uses the queue, and every use
        // is a single call that runs no user code.
        unsafe { &mut *self.cq.get() }
    }

    #[inline]
    fn submitter(&self) -> &Submitter<'static> {
        // SAFETY: no mutable reference exists, because only `close` changes the cell, and no method
        // is called after `close`.
        unsafe { &*self.submitter.get() }
    }

    /// Returns a watch on this ring for another thread. `levels` is the bitmap of the levels in
    /// flight; `kick` ends a wait of the owner.
    pub(crate) fn watch(&self, levels: Arc<AtomicU64>, kick: Arc<Kick>) -> io::Result<RingWatch> {
        RingWatch::new(Arc::clone(&self.ring), levels, kick)
    }

    /// Sets the proxy; later calls have no effect.
    pub(crate) fn set_proxy(&self, proxy: Box<dyn Proxy>) {
        let _ = self.proxy.set(proxy);
    }

    #[inline]
    pub(crate) fn is_on_issuer_thread(&self) -> bool {
        self.issuer == this_thread()
    }

    /// Runs `call` on the issuer: directly if this is the issuer's thread, otherwise by the proxy.
    #[inline]
    fn run_on_issuer<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        if self.is_on_issuer_thread() {
            call()
        } else {
            self.run_by_proxy(&mut call)
        }
    }

    #[cold]
    fn run_by_proxy<T>(&self, call: &mut dyn FnMut() -> io::Result<T>) -> io::Result<T> {
        let Some(proxy) = self.proxy.get() else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the ring was made by another thread: call `set_proxy` before `adopt`",
            ));
        };
        let mut result = None;
        if !proxy.call(&mut || result = Some(call())) {
            // The entries stay queued.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        result.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EAGAIN)))
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.sq().is_full()
    }

    /// Puts an entry into the submission queue. Makes no system call. Returns false if the queue is
    /// full.
    ///
    /// # Safety
    /// The memory that the entry points to must stay valid until the entry's terminal completion.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: &Entry) -> bool {
        // SAFETY: the caller upholds the requirements of this call.
        unsafe { self.sq().push(entry) }.is_ok()
    }

    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.sq().len()
    }

    /// Returns whether the kernel holds completions back, which reach the queue only by an
    /// [`enter`](Self::enter) with `fetch`.
    #[inline]
    pub(crate) fn owes_completions(&self) -> bool {
        let sq = self.sq();
        sq.taskrun() || sq.cq_overflow()
    }

    pub(crate) fn has_overflowed(&self) -> bool {
        self.sq().cq_overflow()
    }

    /// Returns whether there are completions to reap, or to fetch from the kernel. Costs four
    /// loads.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.status.is_empty() || self.owes_completions()
    }

    #[inline]
    pub(crate) fn next_completion(&self) -> Option<cqueue::Entry> {
        self.cq().next()
    }

    /// Frees the queue entries of the completions that have been read. Returns true if more
    /// completions have arrived.
    #[inline]
    pub(crate) fn sync_completions(&self) -> bool {
        let cq = self.cq();
        cq.sync();
        !CompletionQueue::is_empty(cq)
    }

    pub(crate) fn unread(&self) -> usize {
        let cq = self.cq();
        cq.sync();
        cq.len()
    }

    pub(crate) fn publish(&self) {
        self.sq().sync();
    }

    /// Hands all entries over without waiting; with `fetch` the kernel also posts the completions
    /// that it holds back.
    pub(crate) fn enter(&self, fetch: bool) -> io::Result<usize> {
        let flags = if fetch {
            EnterFlags::GETEVENTS
        } else {
            EnterFlags::empty()
        };
        let sq = self.sq();
        sq.sync();
        let pending = sq.len() as u32;
        let result = self.run_on_issuer(|| {
            // SAFETY: the call passes no argument block, so no memory must be valid.
            unsafe {
                self.submitter()
                    .enter::<libc::sigset_t>(pending, 0, flags.bits(), None)
            }
        });
        self.after_enter(result)
    }

    /// Hands all entries over and waits until there are `min_completions` completions, or until
    /// `timeout` has passed.
    pub(crate) fn enter_and_wait(
        &self,
        min_completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let sq = self.sq();
        sq.sync();
        let pending = sq.len() as u32;
        let time = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        if !self.is_on_issuer_thread() {
            return self.hand_over_and_wait(pending, min_completions, timeout);
        }
        // SAFETY: `args` has the type that EXT_ARG announces; `args` and the time outlive the call.
        let result = unsafe {
            self.submitter().enter(
                pending,
                min_completions,
                self.wait_flags.bits(),
                Some(&args),
            )
        };
        self.after_enter(result)
    }

    /// Has the issuer hand the entries over, and waits through the proxy, because the issuer itself
    /// does not wait.
    #[cold]
    fn hand_over_and_wait(
        &self,
        pending: u32,
        min_completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let taken = match pending {
            0 if !self.owes_completions() => 0,
            _ => self.enter(true)?,
        };
        if let Some(proxy) = self.proxy.get()
            && min_completions != 0
            && self.status.is_empty()
        {
            proxy.wait(timeout);
        }
        Ok(taken)
    }

    fn after_enter(&self, result: io::Result<usize>) -> io::Result<usize> {
        self.enters.set(self.enters.get() + 1);
        self.sq().sync();
        if let Ok(taken) = result {
            self.submitted.set(self.submitted.get() + taken as u64);
        }
        result
    }

    /// Registers a buffer ring of `entries` (a power of two) at `address`.
    ///
    /// # Safety
    /// The memory must stay valid until [`unregister_buffers`](Self::unregister_buffers) or
    /// [`close`](Self::close).
    pub(crate) unsafe fn register_buffers(
        &self,
        address: u64,
        entries: u16,
        group: u16,
    ) -> io::Result<()> {
        let mut tries = 0;
        let result = loop {
            let result = self.run_on_issuer(|| {
                // SAFETY: the caller upholds the requirements of this call.
                unsafe {
                    self.submitter()
                        .register_buf_ring_with_flags(address, entries, group, 0)
                }
            });
            // If the issuer did not answer in time, try again here, because the event loop repeats
            // an enter but not this registration.
            tries += 1;
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < 100 => {}
                _ => break result,
            }
        };
        result.map_err(|error| explain("cannot register receive buffers", &error))
    }

    pub(crate) fn unregister_buffers(&self, group: u16) {
        // The call can fail only if no buffers are registered.
        let _ = self.run_on_issuer(|| self.submitter().unregister_buf_ring(group));
    }

    /// Closes the instance.
    ///
    /// # Safety
    /// Nothing may be in flight. This call must be the only one, and the last use of `self`.
    pub(crate) unsafe fn close(&self) {
        // The registered descriptor would keep the instance alive as long as the thread.
        // SAFETY: this is the only reference, because only the owner calls this, as the last use.
        let _ = unsafe { (*self.submitter.get()).unregister_ring_fd() };
        // SAFETY: `new` wrapped this reference in `ManuallyDrop`, and only this function, called
        // once, releases it. The views are never used again.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(&self.ring)) });
    }
}
