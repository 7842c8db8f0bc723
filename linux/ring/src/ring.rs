//! The public interface of a ring, for the thread that owns it.

use crate::accept::AcceptMulti;
use crate::backlog::LEVELS;
use crate::config::{Config, Mode, Stats};
use crate::datagram::DatagramMulti;
use crate::deferred::DeferredCall;
use crate::fd::Fd;
use crate::operation::Operation;
use crate::owner::{Owner, Proxy, this_thread};
use crate::recv::RecvMulti;
use crate::remote::{Kick, Remote, Sleep};
use crate::setup::explain;
use crate::shared::Shared;
use crate::slot::Kind;
use crate::submission::Submission;
use crate::watch::RingWatch;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::RawWakerVTable;
use std::time::Duration;
use std::{fmt, io};

/// The ring of one thread: an io_uring instance, or the readiness driver in its stead
/// ([`Driver`](crate::Driver)).
///
/// A ring stays on the thread that made it, except as [`adopt`](Self::adopt) allows. All methods
/// take `&self` and may be called from wakers and destructors that run inside [`reap`](Self::reap).
/// Levels are 0 (most urgent) to 63; a higher value counts as 63.
///
/// ```
/// # use upshift_ring::{Config, Ring, op};
/// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
/// let ring = Ring::new(Config::default())?;
/// let mut nop = pin!(ring.start(op::Nop::new(), 0));
/// let mut cx = Context::from_waker(Waker::noop());
/// while nop.as_mut().poll(&mut cx).is_pending() {
///     ring.wait(None)?;
///     ring.reap();
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Ring {
    shared: NonNull<Shared>,
    kick: Arc<Kick>,
    _not_send: PhantomData<*mut ()>,
}

impl Ring {
    /// Creates a ring for the calling thread.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for values out of range, otherwise the kernel's refusal with advice; see
    /// [`SetupError`](crate::SetupError).
    pub fn new(config: Config) -> io::Result<Ring> {
        if let Some(fault) = config.fault() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, fault));
        }
        let kick = Kick::new().map_err(|error| explain("cannot create an eventfd", &error))?;
        let kick = Arc::new(kick);
        Ok(Ring {
            shared: Shared::new(&config, kick.clone())?,
            kick,
            _not_send: PhantomData,
        })
    }

    #[inline]
    fn shared(&self) -> &Shared {
        // SAFETY: the ring is a handle that keeps the memory alive, so the pointer is valid.
        unsafe { self.shared.as_ref() }
    }

    /// Returns the mode that the kernel granted.
    pub fn mode(&self) -> Mode {
        self.shared().driver.backend.mode()
    }

    /// Starts an operation. On return the operation is in the submission queue, or in the backlog
    /// of its level if the queue is full. Makes no system call, and does not allocate for
    /// operations of up to 64 bytes.
    #[inline]
    pub fn start<T: Operation>(&self, op: T, level: u8) -> Submission<T> {
        Submission::new(self.shared().driver.start(op, clamp(level)), self.shared)
    }

    /// Accepts connections on a listening socket until the stream is dropped.
    pub fn accept_multi(&self, fd: Fd, level: u8) -> AcceptMulti {
        let driver = &self.shared().driver;
        let started = driver.start_stream(fd, Kind::Accept, clamp(level), None, false);
        AcceptMulti::new(started, self.shared)
    }

    /// Receives from a connected TCP socket until its end or until the stream is dropped. Without
    /// buffers ([`Config::buffers`] = 0) the stream fails with EOPNOTSUPP.
    pub fn recv_multi(&self, fd: Fd, level: u8) -> RecvMulti {
        self.recv_stream(fd, level, false)
    }

    /// Receives from a Unix socket by single receives rather than one multishot operation, because
    /// a multishot receive could miss the end. When a multishot receive has taken all bytes, it
    /// waits for the next event of the socket. If the peer of a Unix socket has written and closed
    /// before, no event follows (seen on Linux 6.18). For TCP the kernel checks for the end.
    pub fn recv_unix(&self, fd: Fd, level: u8) -> RecvMulti {
        self.recv_stream(fd, level, true)
    }

    fn recv_stream(&self, fd: Fd, level: u8, single_shot: bool) -> RecvMulti {
        let driver = &self.shared().driver;
        let started = driver.start_stream(fd, Kind::Recv, clamp(level), None, single_shot);
        RecvMulti::new(started, self.shared)
    }

    /// Receives datagrams with the addresses of their senders until the stream is dropped. Each
    /// datagram takes a buffer, of which [`DatagramMulti::OVERHEAD`] bytes hold no data; longer
    /// datagrams are truncated.
    pub fn datagram_multi(&self, fd: Fd, level: u8) -> DatagramMulti {
        let driver = &self.shared().driver;
        let message = Some(Box::new(DatagramMulti::header()));
        let started = driver.start_stream(fd, Kind::Recv, clamp(level), message, false);
        DatagramMulti::new(RecvMulti::new(started, self.shared))
    }

    /// Reads the whole completion queue, stores the results and wakes the waiters. Returns the
    /// number of completions. Makes no system call.
    #[inline]
    pub fn reap(&self) -> usize {
        let shared = self.shared();
        shared.read_mail();
        shared.driver.reap()
    }

    /// Hands all pending entries to the kernel and fetches the completions that the kernel holds
    /// back; does not wait. Costs one `io_uring_enter` for each filled submission queue and for
    /// each batch of fetched completions. Makes no system call if there is nothing to do.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter` that a retry does not cure. A shortage of kernel memory or of room
    /// for completions is not an error, because entries stay queued for the next call.
    #[inline]
    pub fn submit(&self) -> io::Result<()> {
        let shared = self.shared();
        shared.read_mail();
        shared.driver.submit()
    }

    /// Ends those operations on `fd` whose submission handles have been dropped, and
    /// [reaps](Self::reap). Afterwards only live handles keep the descriptor open. Returns the
    /// number of completions.
    ///
    /// Costs one `io_uring_enter`, which hands over all pending entries; none if the descriptor is
    /// not [shared](Fd::is_shared) or if no handle was dropped before its operation ended. The
    /// readiness driver calls `epoll_ctl` once for each operation. Calls that cannot be cancelled
    /// (mostly those on files) and operations of other rings end later, and keep the descriptor
    /// open until then.
    ///
    /// ```
    /// # use upshift_ring::{Config, Fd, Ring, op};
    /// # use std::os::fd::OwnedFd;
    /// let ring = Ring::new(Config::default())?;
    /// let socket = Fd::from(OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0")?));
    /// drop(ring.recv_multi(socket.clone(), 0));
    /// ring.settle(&socket);
    /// assert!(socket.try_into_owned().is_ok());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn settle(&self, fd: &Fd) -> usize {
        self.shared().driver.settle(fd)
    }

    /// Hands all pending entries to the kernel and waits until there is a completion, a
    /// [kick](Remote::kick) or a signal, or until `timeout` has passed. With `None` there is no
    /// time limit. Costs one `io_uring_enter`, after those that the backlog needs.
    ///
    /// May return early; the caller reaps, looks for work and calls again. Does not block after
    /// [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter` that a retry does not cure.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let shared = self.shared();
        let may_block = timeout != Some(Duration::ZERO) && !shared.driver.closing.get();
        let block = may_block && self.kick.sleep_state.sleep() == Sleep::Block;
        // Read the mail only after `sleep` has marked the thread as asleep: messages posted later
        // kick the ring. Reading mail may run user code that creates work, so do not block then.
        let has_read_mail = shared.read_mail();
        let result = shared.driver.wait(block && !has_read_mail, timeout);
        if block {
            self.kick.sleep_state.awake();
        }
        result
    }

    /// Returns whether there are completions to [reap](Self::reap) or to fetch by
    /// [`submit`](Self::submit). Costs four loads. The readiness driver does not see descriptors
    /// that have become ready since the last fetch, unless a [`RingWatch`] has reported them.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.shared().driver.backend.has_completions()
    }

    /// Like [`has_completions`](Self::has_completions), but the readiness driver also sees
    /// descriptors that have become ready since the last fetch. Unless it knows of completions
    /// already, it makes a system call for this.
    pub fn has_arrivals(&self) -> bool {
        self.shared().driver.backend.has_arrivals()
    }

    /// Returns whether a [`submit`](Self::submit) is due, because there are completions to reap or
    /// entries to hand over. `busy` says whether the thread has not waited for a while. With
    /// [`Driver::Readiness`](crate::Driver::Readiness) a submit is then also due while operations
    /// wait, because only a submit fetches arrivals from the kernel. Costs a few loads.
    #[inline]
    pub fn is_due(&self, busy: bool) -> bool {
        self.shared().driver.is_due(busy)
    }

    /// Returns whether a [`RingWatch`] reports arrivals while the ring's thread is busy.
    pub fn reports_arrivals(&self) -> bool {
        matches!(self.mode(), Mode::DeferTaskrun | Mode::Readiness)
    }

    /// Returns the number of entries that [`submit`](Self::submit) would hand over.
    #[inline]
    pub fn pending_submissions(&self) -> usize {
        self.shared().driver.pending()
    }

    /// Returns the number of operations and armed streams that have not completed.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.shared().driver.in_flight.count()
    }

    /// Returns the bitmap of levels in flight: bit L is set iff an operation or an armed stream
    /// that was started at level L has not completed. Costs one load.
    #[inline]
    pub fn levels_in_flight(&self) -> u64 {
        self.shared().driver.in_flight.bitmap()
    }

    /// Returns the number of slots in use: operations, streams and events whose handles are alive,
    /// and cancelled operations that the kernel still has.
    pub fn slots_in_use(&self) -> usize {
        self.shared().driver.slab.used() as usize
    }

    /// Returns a handle that wakes this ring from other threads.
    pub fn remote(&self) -> Remote {
        Remote::new(self.kick.clone())
    }

    /// Returns a watch on this ring for another thread. Called once per ring, on the thread that
    /// made it.
    ///
    /// # Errors
    ///
    /// The errno of making an eventfd or of registering it (EBUSY if the ring is watched already).
    pub fn watch(&self) -> io::Result<RingWatch> {
        let driver = &self.shared().driver;
        // Submits the poll of the eventfd by which `RingWatch::wake` ends a wait.
        driver.submit()?;
        driver.backend.watch(driver.in_flight.levels(), &self.kick)
    }

    /// Returns whether the calling thread is the ring's issuer, the thread that made the ring.
    /// Other threads enter the kernel through the [proxy](Self::set_proxy).
    #[inline]
    pub fn is_on_issuer_thread(&self) -> bool {
        self.shared().driver.backend.is_on_issuer_thread()
    }

    /// Returns the thread that owns the user-space side of this ring.
    pub fn owner(&self) -> Owner {
        self.shared().owner()
    }

    /// Makes the calling thread the owner of the user-space side of this ring. Handles on this
    /// thread then work on the ring directly, handles on other threads through the mailbox.
    ///
    /// # Safety
    ///
    /// The caller ensures that only one thread at a time uses this `Ring`, and that the owner
    /// changes only while no thread is between the begin and end hooks of
    /// [`UseHooks`](crate::UseHooks). A thread that did not make the ring needs a
    /// [proxy](Self::set_proxy) for system calls.
    pub unsafe fn adopt(&self) {
        self.shared().assign(Owner(this_thread()));
    }

    /// Makes another thread the owner, which must have owned the ring before.
    ///
    /// # Safety
    ///
    /// The requirements of [`adopt`](Self::adopt), with that thread in the role of the caller.
    pub unsafe fn assign(&self, owner: Owner) {
        self.shared().assign(owner);
    }

    /// Acts for the owner: reads its mail, publishes entries and reads completions. The owner's
    /// thread must be stopped meanwhile, and must not be between the begin and end hooks of its
    /// [`UseHooks`](crate::UseHooks).
    ///
    /// Makes no system calls of io_uring. If [`StandInOutcome::needs_enter`] is set, the caller
    /// must have the issuer make them by [`RingWatch::enter`]. Neither wakers nor other user code
    /// run, because user code may wait for the owner.
    ///
    /// # Safety
    ///
    /// The requirements of [`adopt`](Self::adopt), until the call returns.
    pub unsafe fn stand_in(&self) -> StandInOutcome {
        let shared = self.shared();
        let (owner, driver) = (shared.owner(), &shared.driver);
        shared.assign(Owner(this_thread()));
        let previous = driver.deferred.defer_all();
        shared.read_mail();
        let needs_enter = driver.publish();
        driver.reap();
        driver.deferred.restore(previous);
        shared.assign(owner);
        StandInOutcome {
            wakers: driver.deferred.take(),
            needs_enter,
        }
    }

    /// Defers user code until [`take_deferred`](Self::take_deferred). This user code is the calls
    /// of wakers and, for operations without a handle, the destructors that [may run user
    /// code](crate::Operation::DROP_RUNS_USER_CODE). Wakers with `runtime_vtable` are the
    /// runtime's, and are still called at once.
    pub fn defer_user_code(&self, runtime_vtable: &'static RawWakerVTable) {
        self.shared()
            .driver
            .deferred
            .defer_user_code(runtime_vtable);
    }

    /// Returns whether there is deferred user code to [take](Self::take_deferred). Costs one load.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.shared().driver.deferred.has_calls()
    }

    /// Takes the deferred user code, in the order in which it was due. Dropping an element runs it.
    pub fn take_deferred(&self) -> Vec<DeferredCall> {
        self.shared().driver.deferred.take()
    }

    /// Sets the proxy that makes the system calls of owners other than the
    /// [issuer](Self::is_on_issuer_thread). Later calls have no effect.
    pub fn set_proxy(&self, proxy: Box<dyn Proxy>) {
        self.shared().driver.backend.set_proxy(proxy);
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.shared().driver.stats()
    }

    /// Cancels everything and returns when nothing is in flight. Operations end with ECANCELED, or
    /// with the result that they had reached, and wake their waiters. Later operations fail with
    /// ECANCELED. Dropping the ring shuts it down first, then closes it; the memory is freed when
    /// the last handle is dropped.
    ///
    /// Blocks while the kernel executes an operation that it cannot interrupt (disk I/O). If the
    /// kernel refuses even the `io_uring_enter` that waits (a seccomp filter installed in the
    /// meantime), operations stay in flight, and dropping the ring leaks its memory.
    pub fn shutdown(&self) {
        // Only the drop needs the outcome.
        let _ = self.shared().shutdown();
    }
}

/// The outcome of [`Ring::stand_in`].
#[must_use = "the deferred calls must be run"]
#[derive(Debug)]
pub struct StandInOutcome {
    /// Wakers and destructors that were due, to be run once the owner may continue.
    pub wakers: Vec<DeferredCall>,
    /// Set if the kernel has not taken all entries, or holds completions back. Then a
    /// [`RingWatch::enter`] is due.
    pub needs_enter: bool,
}

#[inline]
fn clamp(level: u8) -> u8 {
    level.min(LEVELS as u8 - 1)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `close` is called only here, on the ring's thread, and `shared` is not used
        // afterwards.
        unsafe { Shared::close(self.shared) };
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("mode", &self.mode())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
