//! The driver for machines without io_uring. It waits for readiness with epoll, makes nonblocking
//! calls, and has threads for calls that block.
//!
//! The driver does what the kernel does for io_uring: it takes the same submission queue entries,
//! and answers with the same completions ([`Backend`](crate::backend::Backend)).
//! [`enter`](Readiness::enter) attempts each entry at once.
//! An entry that would block waits for its descriptor to become ready and is attempted again. An
//! entry that can only block goes to an [`Offload`](crate::Offload).
//!
//! ```text
//!         attempt ┌──► completion
//!   entry ────────┼──► waits at its descriptor ── ready: attempt again, in the order of arrival
//!     cancelled ◄─┤
//!                 └──► thread that may block ── posts its result, eventfd
//! ```
//!
//! | operation | implementation |
//! |---|---|
//! | NOP | completes at once |
//! | SEND, SENDMSG, RECV, RECVMSG | `MSG_DONTWAIT`; repeated until complete with `MSG_WAITALL` |
//! | RECV and RECVMSG multishot | when readable, into the buffers of the pool, up to 32 at a time |
//! | ACCEPT multishot | `accept4`; the listening socket becomes nonblocking permanently |
//! | CONNECT | nonblocking for the length of the call; see below for local sockets |
//! | POLL_ADD | `poll`, then epoll |
//! | READ, WRITE, READV, WRITEV | `RWF_NOWAIT` (page cache, pipes); other files on a thread |
//! | FSYNC, FTRUNCATE, STATX, OPENAT, OPENAT2 | on a thread |
//! | MKDIRAT, UNLINKAT, RENAMEAT, LINKAT, SYMLINKAT | on a thread |
//! | ASYNC_CANCEL | by `user_data`, or all; a call that a thread is making runs to its end |
//!
//! If the queue of a local socket's peer is full, the socket never becomes ready, so a thread tries
//! to connect each millisecond. The table covers all of [`op`](crate::op). Any other entry, which
//! only an [`Operation`](crate::Operation) of another crate can make, completes with EOPNOTSUPP.
//!
//! # Comparison with io_uring
//!
//! * Buffers, descriptors and slots belong to an operation until its last completion, which is
//!   posted when no call uses them any more. A descriptor is registered only while operations wait
//!   at it. These operations keep it open, so its number cannot be reused while it is registered.
//! * Interest is level-triggered and stays armed while a stream receives. So a request to a server
//!   costs a `recv`, a `send`, and part of an `epoll_wait`, which serves several requests.
//! * Arrivals do not interrupt a busy thread, so it must check for them once per iteration of its
//!   loop ([`Ring::is_due`](crate::Ring::is_due)). A [`Notifier`] notifies other threads.
//! * Any owner makes the calls, not only the thread that made the ring. So no proxy is needed, and
//!   a thread that stands in for a busy owner reads the owner's sockets itself.
//! * A call that a thread is making cannot be interrupted. So opening a file on a dead server, or a
//!   FIFO without a peer, delays the ring's shutdown.

mod attempt;
pub(crate) mod blocking;
mod calls;
pub(crate) mod epoll;
pub(crate) mod notifier;
pub(crate) mod sqe;
mod table;

use crate::catch_panic::catch_panic;
use crate::config::Config;
use crate::offload::{Call, Job, Offload, Posts, ThreadPerCall};
use crate::setup::explain;
use crate::slot::{CANCEL, KICK};
use crate::watch::RingWatch;
use attempt::{Group, Outcome, attempt};
use epoll::Event;
use io_uring::opcode;
use io_uring::squeue::Entry;
use notifier::Notifier;
use sqe::{CANCEL_ANY, MORE, Sqe};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use table::{MAX_EVENTS, NONE, Operation, State, Status, UNREGISTERED};

/// The epoll token of the eventfd with which other threads wake the ring's thread. The token of a
/// descriptor that is not one of the two eventfds is its number, which is smaller than both tokens.
const KICK_TOKEN: u64 = u64::MAX;

/// The epoll token of the eventfd that is signalled when a blocking call has ended.
const POST_TOKEN: u64 = u64::MAX - 1;

/// Minimum time between two fetches while there are completions to reap.
const FETCH_INTERVAL: Duration = Duration::from_micros(20);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

pub(crate) struct Readiness {
    notifier: Arc<Notifier>,
    posts: Arc<Posts>,
    offload: Arc<dyn Offload>,
    entries: usize,
    queue: RefCell<Vec<(Sqe, u8)>>,
    completions: RefCell<VecDeque<Completion>>,
    state: RefCell<State>,
    /// Number of operations that wait for readiness, or for a thread.
    waiting: Cell<usize>,
    /// Set when the last fetch filled the array of events.
    may_have_events: Cell<bool>,
    /// Set from the start of an iteration until its first fetch, if operations wait.
    is_fetch_due: Cell<bool>,
    fetched_at: Cell<Option<Instant>>,
    pub(crate) enters: Cell<u64>,
    pub(crate) submitted: Cell<u64>,
}

impl Readiness {
    pub(crate) fn new(config: &Config) -> io::Result<Self> {
        let create = || -> io::Result<_> {
            let (notifier, posts) = (Notifier::new()?, Posts::new()?);
            let readable = libc::EPOLLIN as u32;
            notifier
                .epoll
                .add(posts.eventfd.as_raw_fd(), readable, POST_TOKEN)?;
            Ok((notifier, posts))
        };
        let (notifier, posts) = create().map_err(|error| explain("cannot set up epoll", &error))?;
        let offload = config.offload.clone();
        Ok(Self {
            notifier: Arc::new(notifier),
            posts: Arc::new(posts),
            offload: offload.unwrap_or_else(|| Arc::new(ThreadPerCall)),
            entries: config.entries as usize,
            queue: RefCell::new(Vec::with_capacity(config.entries as usize)),
            completions: RefCell::default(),
            state: RefCell::new(State::new()),
            waiting: Cell::new(0),
            may_have_events: Cell::new(false),
            is_fetch_due: Cell::new(false),
            fetched_at: Cell::new(None),
            enters: Cell::new(0),
            submitted: Cell::new(0),
        })
    }

    pub(crate) fn watch(&self, levels: Arc<AtomicU64>) -> io::Result<RingWatch> {
        self.notifier.register()?;
        Ok(RingWatch::from_notifier(self.notifier.clone(), levels))
    }

    // The methods are cold, so that their code stays out of the path of rings that use io_uring.
    #[cold]
    pub(crate) fn is_full(&self) -> bool {
        self.queue.borrow().len() == self.entries
    }

    /// Queues an entry. Returns false if the queue is full.
    ///
    /// # Safety
    /// The memory that the entry points to stays valid until its terminal completion.
    #[cold]
    #[must_use]
    pub(crate) unsafe fn push(&self, entry: &Entry, level: u8) -> bool {
        let mut queue = self.queue.borrow_mut();
        let has_room = queue.len() < self.entries;
        if has_room {
            queue.push((Sqe::from_entry(entry), level));
        }
        has_room
    }

    #[cold]
    pub(crate) fn pending(&self) -> usize {
        self.queue.borrow().len()
    }

    #[cold]
    pub(crate) fn begin_iteration(&self) {
        self.is_fetch_due.set(self.has_waiting());
    }

    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.get() != 0
    }

    #[cold]
    pub(crate) fn owes_completions(&self) -> bool {
        self.may_have_events.get() || self.is_fetch_due.get()
    }

    #[cold]
    pub(crate) fn is_due(&self, busy: bool) -> bool {
        self.has_completions() || self.pending() != 0 || (busy && self.has_waiting())
    }

    #[cold]
    pub(crate) fn has_completions(&self) -> bool {
        self.may_have_events.get() || self.unread() != 0 || self.notifier.is_notified()
    }

    pub(crate) fn has_arrivals(&self) -> bool {
        self.has_completions() || self.notifier.epoll.is_ready()
    }

    #[inline]
    pub(crate) fn unread(&self) -> usize {
        self.completions.borrow().len()
    }

    #[inline]
    pub(crate) fn next_completion(&self) -> Option<Completion> {
        let mut completions = self.completions.borrow_mut();
        let next = completions.pop_front();
        self.notifier.set_unread(completions.len());
        next
    }

    fn post(&self, user_data: u64, result: i32, flags: u32) {
        let mut completions = self.completions.borrow_mut();
        completions.push_back(Completion {
            user_data,
            result,
            flags,
        });
        self.notifier.set_unread(completions.len());
    }

    /// Registers a buffer ring.
    ///
    /// # Safety
    /// The memory is a ring of `entries` buffers until they are unregistered or the ring is closed.
    pub(crate) unsafe fn register_buffers(&self, address: u64, entries: u16, group: u16) {
        let groups = &mut self.state.borrow_mut().groups;
        let index = usize::from(group);
        if groups.len() <= index {
            groups.resize(index + 1, None);
        }
        // SAFETY: the caller upholds the requirements of this call.
        groups[index] = Some(unsafe { Group::new(address, entries) });
    }

    pub(crate) fn unregister_buffers(&self, group: u16) {
        if let Some(group) = self.state.borrow_mut().groups.get_mut(usize::from(group)) {
            *group = None;
        }
    }

    /// Takes all entries. With `fetch`, also handles the events that are ready now.
    pub(crate) fn enter(&self, fetch: bool) -> usize {
        let entry_count = self.take_entries();
        if fetch {
            let is_recent = |at: Instant| at.elapsed() < FETCH_INTERVAL;
            if self.may_have_events.get()
                || self.unread() == 0
                || !self.fetched_at.get().is_some_and(is_recent)
            {
                // No error is possible, because signals do not interrupt a fetch that does not
                // wait.
                let _ = self.fetch(Some(Duration::ZERO));
            }
            self.is_fetch_due.set(false);
        }
        entry_count
    }

    /// Takes all entries. Waits for events if there is no completion yet and `min_completions` is
    /// not 0, and handles the events that are ready.
    pub(crate) fn enter_and_wait(
        &self,
        min_completions: u32,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let entry_count = self.take_entries();
        let waits = min_completions != 0 && self.unread() == 0;
        self.fetch(if waits { timeout } else { Some(Duration::ZERO) })?;
        Ok(entry_count)
    }

    pub(crate) fn close(&self) {
        debug_assert_eq!(self.waiting.get(), 0);
    }

    fn take_entries(&self) -> usize {
        self.enters.set(self.enters.get() + 1);
        let mut queue = self.queue.borrow_mut();
        let entry_count = queue.len();
        let state = &mut *self.state.borrow_mut();
        for (sqe, level) in queue.drain(..) {
            self.begin(state, &sqe, level);
        }
        self.submitted
            .set(self.submitted.get() + entry_count as u64);
        entry_count
    }

    fn begin(&self, state: &mut State, sqe: &Sqe, level: u8) {
        if sqe.opcode == opcode::AsyncCancel::CODE {
            if sqe.op_flags & CANCEL_ANY == 0 {
                self.cancel(state, sqe.address);
            } else {
                self.cancel_all(state);
            }
            return;
        }
        if sqe.user_data == KICK {
            return self.listen_for_kicks(state, sqe);
        }
        let mut bytes_done = 0;
        let mut post = |result, flags| self.post(sqe.user_data, result, flags);
        match attempt(sqe, &mut bytes_done, true, &mut state.groups, &mut post) {
            Outcome::Done(result) => self.post(sqe.user_data, result, 0),
            Outcome::Offload => self.offload(state, sqe, level),
            Outcome::Wait(events) => {
                let operation = Operation {
                    sqe: *sqe,
                    level,
                    bytes_done,
                    status: Status::Free,
                };
                match self.wait_at(state, operation, events) {
                    Ok(()) => self.waiting.set(self.waiting.get() + 1),
                    // The descriptor is a file, which epoll does not support and which may block.
                    Err(libc::EPERM) => self.offload(state, sqe, level),
                    Err(errno) => self.post(sqe.user_data, -errno, 0),
                }
            }
        }
    }

    /// Starts the multishot poll of the eventfd by which other threads wake the ring's thread. The
    /// poll is edge-triggered, so nothing reads the eventfd.
    fn listen_for_kicks(&self, state: &mut State, sqe: &Sqe) {
        let each_write = (libc::EPOLLIN | libc::EPOLLET) as u32;
        match self.notifier.epoll.add(sqe.fd, each_write, KICK_TOKEN) {
            Ok(()) => state.kicks = Some(sqe.fd),
            Err(error) => self.post(KICK, -error.raw_os_error().unwrap_or(libc::EIO), 0),
        }
    }

    fn offload(&self, state: &mut State, sqe: &Sqe, level: u8) {
        let call = Call::new(*sqe, &self.posts);
        *state.operation(sqe) = Operation {
            sqe: *sqe,
            level,
            bytes_done: 0,
            status: Status::Offloaded(call.clone()),
        };
        self.waiting.set(self.waiting.get() + 1);
        // `offload` is user code. If it panics, the job is dropped, which ends the operation.
        catch_panic(|| self.offload.offload(level, Job::new(&call)));
    }

    fn wait_at(&self, state: &mut State, operation: Operation, events: u32) -> Result<(), i32> {
        let sqe = operation.sqe;
        let Ok(number) = usize::try_from(sqe.fd) else {
            return Err(libc::EBADF);
        };
        if state.descriptors.len() <= number {
            state.descriptors.resize(number + 1, UNREGISTERED);
        }
        let wanted = state.descriptors[number].events | events;
        self.register(state, sqe.fd, wanted)?;
        *state.operation(&sqe) = Operation {
            status: Status::Waits { events, next: NONE },
            ..operation
        };
        state.append(sqe.fd, sqe.user_data as u32);
        Ok(())
    }

    /// Sets the events that epoll reports for a descriptor. With 0, removes the descriptor.
    fn register(&self, state: &mut State, fd: RawFd, events: u32) -> Result<(), i32> {
        let descriptor = &mut state.descriptors[fd as usize];
        if descriptor.events == events {
            return Ok(());
        }
        let (epoll, token) = (&self.notifier.epoll, fd as u64);
        let result = match (descriptor.events, events) {
            (_, 0) => {
                epoll.remove(fd);
                Ok(())
            }
            (0, _) => epoll.add(fd, events, token),
            _ => match epoll.change(fd, events, token) {
                // The descriptor was closed while operations waited at it, and its number was
                // reused.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    epoll.add(fd, events, token)
                }
                changed => changed,
            },
        };
        result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        descriptor.events = events;
        Ok(())
    }

    fn fetch(&self, timeout: Option<Duration>) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        self.notifier.begin_fetch();
        let result = self.notifier.epoll.wait(&mut state.events[..], timeout);
        if self.unread() != 0 || self.has_waiting() {
            self.fetched_at.set(Some(Instant::now()));
        }
        let count = match result {
            Ok(count) => count,
            Err(error) => {
                self.notifier.end_fetch();
                return Err(error);
            }
        };
        self.may_have_events.set(count == MAX_EVENTS);
        for index in 0..count {
            let Event { events, u64: token } = state.events[index];
            match token {
                KICK_TOKEN => self.post(KICK, i32::from(libc::POLLIN), MORE),
                POST_TOKEN => self.take_posts(state),
                fd => self.handle_ready(state, fd as RawFd, events),
            }
        }
        self.notifier.end_fetch();
        Ok(())
    }

    fn take_posts(&self, state: &mut State) {
        for (user_data, result) in self.posts.take() {
            if let Some(operation) = state.find(user_data)
                && matches!(operation.status, Status::Offloaded(_))
            {
                operation.status = Status::Free;
                self.waiting.set(self.waiting.get() - 1);
                self.post(user_data, result, 0);
            }
        }
    }

    fn handle_ready(&self, state: &mut State, fd: RawFd, ready_events: u32) {
        let error_events = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let Some(descriptor) = state.descriptors.get_mut(fd as usize) else {
            return;
        };
        let mut index = std::mem::replace(&mut descriptor.first, NONE);
        let mut wanted = 0;
        while index != NONE {
            let operation = &mut state.operations[index as usize];
            let Status::Waits { events, next } = operation.status else {
                unreachable!("operations in the list wait");
            };
            let (sqe, level) = (operation.sqe, operation.level);
            let matching_events = ready_events & (events | error_events);
            let outcome = if matching_events == 0 {
                Outcome::Wait(events)
            } else if sqe.opcode == opcode::PollAdd::CODE {
                Outcome::Done(matching_events.cast_signed())
            } else {
                let mut post = |result, flags| self.post(sqe.user_data, result, flags);
                let bytes_done = &mut operation.bytes_done;
                attempt(&sqe, bytes_done, false, &mut state.groups, &mut post)
            };
            match outcome {
                Outcome::Wait(events) => {
                    operation.status = Status::Waits { events, next: NONE };
                    wanted |= events;
                    state.append(fd, index);
                }
                Outcome::Done(result) => {
                    operation.status = Status::Free;
                    self.waiting.set(self.waiting.get() - 1);
                    self.post(sqe.user_data, result, 0);
                }
                Outcome::Offload => {
                    self.waiting.set(self.waiting.get() - 1);
                    self.offload(state, &sqe, level);
                }
            }
            index = next;
        }
        // If this fails because memory is short, epoll reports more events than are wanted.
        let _ = self.register(state, fd, wanted);
    }

    fn cancel(&self, state: &mut State, user_data: u64) {
        if user_data == KICK || user_data == CANCEL {
            return;
        }
        let Some(operation) = state.find(user_data) else {
            return;
        };
        let result = match operation.bytes_done {
            0 => -libc::ECANCELED,
            bytes_done => bytes_done.cast_signed(),
        };
        match &operation.status {
            Status::Free => return,
            Status::Offloaded(call) => {
                if !call.cancel() {
                    return;
                }
            }
            Status::Waits { .. } => {
                let fd = operation.sqe.fd;
                let wanted = state.unlink(fd, user_data as u32);
                let _ = self.register(state, fd, wanted);
            }
        }
        state.operations[user_data as u32 as usize].status = Status::Free;
        self.waiting.set(self.waiting.get() - 1);
        self.post(user_data, result, 0);
    }

    fn cancel_all(&self, state: &mut State) {
        if let Some(fd) = state.kicks.take() {
            self.notifier.epoll.remove(fd);
            self.post(KICK, -libc::ECANCELED, 0);
        }
        for index in 0..state.operations.len() {
            let user_data = state.operations[index].sqe.user_data;
            self.cancel(state, user_data);
        }
    }
}
