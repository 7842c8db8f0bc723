//! The ring as its thread sees it. Each method says what it costs.

use crate::accept::AcceptMulti;
use crate::backlog::LEVELS;
use crate::config::{Config, Mode, Stats};
use crate::datagram::DatagramMulti;
use crate::fd::Fd;
use crate::foreign::Foreign;
use crate::operation::Operation;
use crate::owner::{Owner, Proxy, this_thread};
use crate::recv::RecvMulti;
use crate::remote::{Kick, Remote, Sleep};
use crate::setup::explain;
use crate::shared::Shared;
use crate::slot::Kind;
use crate::submission::Submission;
use crate::watch::Watch;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::RawWakerVTable;
use std::time::Duration;
use std::{fmt, io};

/// The ring of one thread: an io_uring instance, or what stands for it ([`Driver`](crate::Driver)).
///
/// It stays on the thread that made it, but for what [`adopt`](Self::adopt) allows. All methods take `&self` and may be called from wakers and destructors that run
/// inside [`reap`](Self::reap). Levels are 0 (most urgent) to 63; what is above counts as 63.
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
    _stays: PhantomData<*mut ()>,
}

impl Ring {
    /// Builds a ring for this thread.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for figures out of range, otherwise the kernel's refusal with what to change; see
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
            _stays: PhantomData,
        })
    }

    #[inline]
    fn shared(&self) -> &Shared {
        // SAFETY: the ring is a handle and keeps it alive.
        unsafe { self.shared.as_ref() }
    }

    /// The rung of the ladder that the kernel granted.
    pub fn mode(&self) -> Mode {
        self.shared().driver.backend.mode()
    }

    /// Starts an operation: it is in the submission queue when this returns, or in the backlog of its level if the queue
    /// is full. No system call; no allocation for operations up to 64 bytes.
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

    /// Receives from a connected TCP socket until its end or until the stream is dropped. Without buffers
    /// ([`Config::buffers`] = 0) the stream fails with EOPNOTSUPP.
    pub fn recv_multi(&self, fd: Fd, level: u8) -> RecvMulti {
        self.recv_stream(fd, level, false)
    }

    /// The same for Unix sockets, by an operation for each piece. The kernel's multishot receive, when it has taken what was there, waits for
    /// a change: of a Unix socket whose peer wrote and closed before, there is none (seen on Linux 6.18; for TCP it looks whether the peer
    /// has finished).
    pub fn recv_unix(&self, fd: Fd, level: u8) -> RecvMulti {
        self.recv_stream(fd, level, true)
    }

    fn recv_stream(&self, fd: Fd, level: u8, anew: bool) -> RecvMulti {
        let driver = &self.shared().driver;
        let started = driver.start_stream(fd, Kind::Recv, clamp(level), None, anew);
        RecvMulti::new(started, self.shared)
    }

    /// Receives datagrams with the addresses of their senders until the stream is dropped. Each takes a buffer, of which
    /// [`DatagramMulti::OVERHEAD`] bytes are not for data; what does not fit is cut off.
    pub fn datagram_multi(&self, fd: Fd, level: u8) -> DatagramMulti {
        let driver = &self.shared().driver;
        let message = Some(Box::new(DatagramMulti::header()));
        let started = driver.start_stream(fd, Kind::Recv, clamp(level), message, false);
        DatagramMulti::new(RecvMulti::new(started, self.shared))
    }

    /// Reads the whole completion queue, stores the results and wakes what waits for them. Returns how many
    /// completions there were. No system call.
    #[inline]
    pub fn reap(&self) -> usize {
        let shared = self.shared();
        shared.read_mail();
        shared.driver.reap()
    }

    /// Hands all pending entries to the kernel and fetches the completions it holds back; does not wait. One enter per
    /// filled submission queue and per handful of fetched completions, none if there is nothing to do.
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter` that retrying does not cure. A kernel that is short of memory or of room for completions is
    /// not an error: entries stay queued for the next call.
    #[inline]
    pub fn submit(&self) -> io::Result<()> {
        let shared = self.shared();
        shared.read_mail();
        shared.driver.submit()
    }

    /// Ends the operations on a descriptor whose handles have been dropped, and
    /// [reaps](Self::reap). Then only handles that are alive keep the descriptor open. Returns the
    /// number of completions.
    ///
    /// Costs one enter, which hands over all pending entries; none if the descriptor is not
    /// [shared](Fd::is_shared) or no operation has lost its handle. The readiness driver calls
    /// `epoll_ctl` once for each operation. Calls that cannot be cancelled (of files, mostly) and
    /// operations of other rings are left to later turns.
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

    /// Hands all pending entries to the kernel and waits until there is a completion, a [kick](Remote::kick), a signal, or
    /// `timeout` has passed (`None`: for ever). One enter, after those that the backlog needs.
    ///
    /// May return early; the caller reaps, looks for work and comes back. Does not block after [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    ///
    /// Those of `io_uring_enter` that retrying does not cure.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let shared = self.shared();
        let willing = timeout != Some(Duration::ZERO) && !shared.driver.closing.get();
        let block = willing && self.kick.doze.sleep() == Sleep::Block;
        // After the word says SLEEPING: what is posted from here on kicks. Mail may run foreign code that finds work.
        let mail = shared.read_mail();
        let result = shared.driver.wait(block && !mail, timeout);
        if block {
            self.kick.doze.awake();
        }
        result
    }

    /// Is there something to [reap](Self::reap), or known to be there to be fetched by [`submit`](Self::submit)? Four loads.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.shared().driver.backend.has_completions()
    }

    /// The same, also where it takes a system call to know.
    pub fn has_arrivals(&self) -> bool {
        self.shared().driver.backend.has_arrivals()
    }

    /// Is a [`submit`](Self::submit) due: is there something to reap, or to hand over? `busy` is for a thread that has not waited for
    /// some time: with [`Driver::Readiness`](crate::Driver::Readiness) nothing shows it what has arrived, and it is to ask. A few loads.
    #[inline]
    pub fn is_due(&self, busy: bool) -> bool {
        self.shared().driver.is_due(busy)
    }

    /// Can a [`Watch`] tell of arrivals while the ring's thread is busy?
    pub fn tells_of_arrivals(&self) -> bool {
        matches!(self.mode(), Mode::DeferTaskrun | Mode::Readiness)
    }

    /// Entries that [`submit`](Self::submit) would hand over.
    #[inline]
    pub fn pending_submissions(&self) -> usize {
        self.shared().driver.pending()
    }

    /// Operations and armed streams that have not completed.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.shared().driver.flying.count()
    }

    /// Bit L is set iff an operation or an armed stream that was started at level L has not completed. One load.
    #[inline]
    pub fn levels_in_flight(&self) -> u64 {
        self.shared().driver.flying.bitmap()
    }

    /// Slots in use: operations, streams and events whose handles are alive, and cancelled ones the kernel still has.
    pub fn slots_in_use(&self) -> usize {
        self.shared().driver.slab.used() as usize
    }

    /// A handle to wake this ring from other threads.
    pub fn remote(&self) -> Remote {
        Remote::new(self.kick.clone())
    }

    /// A watch on this ring for another thread; once per ring, on the thread that made it.
    ///
    /// # Errors
    ///
    /// What the kernel answers to another descriptor, or to a second registration (EBUSY).
    pub fn watch(&self) -> io::Result<Watch> {
        let driver = &self.shared().driver;
        // The poll of the eventfd by which `Watch::rouse` ends a wait is under way from here on.
        driver.submit()?;
        driver.backend.watch(driver.flying.levels(), &self.kick)
    }

    /// Did the calling thread make this ring? Others enter the kernel by its [proxy](Self::set_proxy).
    #[inline]
    pub fn is_made_here(&self) -> bool {
        self.shared().driver.backend.is_made_here()
    }

    /// The thread that owns the user-space side of this ring.
    pub fn owner(&self) -> Owner {
        self.shared().owner()
    }

    /// The calling thread owns the user-space side of this ring from now on, as the maker did at first: its handles work on the
    /// ring directly, those on other threads through the mailbox.
    ///
    /// # Safety
    ///
    /// The caller sees to it that one thread at a time uses this `Ring`, and that the owner changes only while no thread is
    /// within its [`Bracket`](crate::Bracket). System calls of other threads than the maker need a [proxy](Self::set_proxy).
    pub unsafe fn adopt(&self) {
        self.shared().assign(Owner(this_thread()));
    }

    /// The same on behalf of another thread, which owned the ring before.
    ///
    /// # Safety
    ///
    /// As [`adopt`](Self::adopt), with that thread for the calling one.
    pub unsafe fn assign(&self, owner: Owner) {
        self.shared().assign(owner);
    }

    /// Does a turn on behalf of the owner, which is stopped outside of all uses: reads its mail,
    /// publishes entries and reads completions. The owner's system calls are left to
    /// [`Watch::enter`]. Wakers are not called, and code of users is not run: it may wait for the
    /// owner.
    ///
    /// # Safety
    ///
    /// As [`adopt`](Self::adopt), from the call to its return.
    pub unsafe fn stand_in(&self) -> StoodIn {
        let shared = self.shared();
        let (owner, driver) = (shared.owner(), &shared.driver);
        shared.assign(Owner(this_thread()));
        let before = driver.foreign.keep_all();
        shared.read_mail();
        let owes_call = driver.publish();
        driver.reap();
        driver.foreign.put_back(before);
        shared.assign(owner);
        StoodIn {
            wakers: driver.foreign.take(),
            owes_call,
        }
    }

    /// From now on [`reap`](Self::reap) and the others call wakers of this kind only. Those of others, and what operations without a handle
    /// leave behind that may run [code of users](crate::Operation::FOREIGN), are kept for [`take_foreign`](Self::take_foreign).
    pub fn set_own(&self, own: &'static RawWakerVTable) {
        self.shared().driver.foreign.set_own(own);
    }

    /// Is there something to [take](Self::take_foreign)? One load.
    #[inline]
    pub fn has_foreign(&self) -> bool {
        self.shared().driver.foreign.has_some()
    }

    /// Code of users that was not run, in the order in which it was due. It runs when it is dropped.
    pub fn take_foreign(&self) -> Vec<Foreign> {
        self.shared().driver.foreign.take()
    }

    /// What makes the system calls of owners that did not make the ring.
    pub fn set_proxy(&self, proxy: Box<dyn Proxy>) {
        self.shared().driver.backend.set_proxy(proxy);
    }

    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        self.shared().driver.stats()
    }

    /// Cancels everything and returns when nothing is in flight. Wakes what waited: operations end with ECANCELED,
    /// or with what they achieved before. Later ones are refused with ECANCELED. Dropping the ring does this first, then
    /// closes it; memory goes when the last handle is gone.
    ///
    /// Blocks while the kernel is in the middle of an operation that it cannot interrupt (disk I/O). If it refuses even to wait
    /// (a seccomp filter installed in the meantime), what is in flight stays so, and dropping the ring leaks it.
    pub fn shutdown(&self) {
        // What became of it matters to the drop only.
        let _ = self.shared().shutdown();
    }
}

/// What came of [`Ring::stand_in`].
#[must_use = "what waits for the completions is to be woken"]
#[derive(Debug)]
pub struct StoodIn {
    /// To be woken, and dropped, when the owner may go on.
    pub wakers: Vec<Foreign>,
    /// The kernel has not taken all entries, or holds completions back.
    pub owes_call: bool,
}

#[inline]
fn clamp(level: u8) -> u8 {
    level.min(LEVELS as u8 - 1)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: once, on the ring's thread, and last.
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
