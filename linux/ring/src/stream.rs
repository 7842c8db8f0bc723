//! Handles the completions of streams, which are multishot operations: accept, and receive.
//!
//! A stream occupies a slot of its own. Each completion with data for the consumer (the user's
//! handle) is stored in another slot, called an *event*. The event is delivered through the inbox
//! of the stream's slot. A multishot operation may end while the stream continues. The operation is
//! then submitted again; this is called *arming* the stream:
//!
//! ```text
//!              1 arm                          2 completion without F_MORE
//!   Idle ───────────────▶ Backlog/InFlight ────────────────────────────────┐
//!    ▲ ▲ ▲                     ▲   ▲                                       │
//!    │ │ │ 6 consumer requests │   └──── 3 data, or cancelled: arm again ──┤
//!    │ │ └─────────────────────┤                                           │
//!    │ └── 4 consumer behind: STALLED event, stop until 6 ─────────────────┤
//!    │     5 end or error: event, stop until 6 (accept) or for good ───────┘
//!    │                         │
//!    │                      Starved ◀── 7 no buffer: wait for one ──────── (2)
//!    └─────────────────────────┘ 8 a buffer came back
//! ```
//!
//! Back-pressure: `pushed` (by the ring) minus `taken` (by the consumer) is the number of unread
//! events. When this number reaches the window, the operation is cancelled. Completions that still
//! arrive before the cancellation takes effect have taken their buffers already, so they are
//! delivered, too. Thus the window may be exceeded by up to 32 buffers per stream and enter. A
//! receive waits for readiness before its first attempt, because the kernel cannot cancel a receive
//! that goes on directly from that attempt. The consumer finds the `STALLED` event after the last
//! data and requests more.
//!
//! Starvation: consumers that do not read, or that hold their buffers, must not keep the other
//! streams of their level from receiving. So a receive that finds no buffer in the pool allocates
//! one, if its consumer has read all data. Otherwise the stream stops until the consumer requests
//! more. Memory is therefore bounded by the pool and one buffer per stream.
//!
//! A stream of datagrams that finds no buffer is *starved*, and joins a FIFO queue. Each submit
//! arms as many of the starved streams of a level as there are buffers. The streams that have data
//! take buffers. If buffers are left, the next submit arms more streams. So no buffer stays idle
//! while a stream that could use it waits, and the ring does not sleep while such a stream can be
//! armed.

use crate::backlog::LEVELS;
use crate::config::Mode;
use crate::counters::count;
use crate::driver::Driver;
use crate::fd::Fd;
use crate::operation::{Operation, Stored};
use crate::pool::Pool;
use crate::pools;
use crate::setup::errno_of;
use crate::slot::{CANCELLED, Kind, ORPHAN, Slot, SlotState};
use io_uring::{cqueue, opcode, squeue};
use std::cell::Cell;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

/// The result of an event that tells the consumer that the stream is stopped until the consumer
/// requests more. The kernel never returns this value.
pub(crate) const STALLED: i32 = i32::MIN;

/// `IORING_RECVSEND_POLL_FIRST`, by which the kernel waits for readiness before the first attempt.
const POLL_FIRST: u16 = 1 << 0;
const MULTISHOT: u16 = 1 << 1;

/// Flag of an event whose data is in a buffer outside of the pool, to which the payload points. The
/// kernel does not use this bit.
const UNPOOLED: u32 = 1 << 14;

pub(crate) struct UnpooledBuffer(pub(crate) Vec<u8>);

/// Takes the unpooled buffer of an event, if it has one.
///
/// # Safety
/// The event belongs to the caller.
pub(crate) unsafe fn take_unpooled(event: &Slot) -> Option<Box<UnpooledBuffer>> {
    let flags = event.flags.get();
    if flags & UNPOOLED == 0 {
        return None;
    }
    event.flags.set(flags & !UNPOOLED);
    // SAFETY: `deliver` stored the pointer, and the flag that announced it has been cleared.
    Some(unsafe { Box::from_raw(event.payload().cast::<*mut UnpooledBuffer>().read()) })
}

pub(crate) struct StreamOp {
    fd: Fd,
    kind: Kind,
    /// The level whose pool provides the buffers of a receive.
    level: u8,
    /// Number of events delivered. Owner only.
    pushed: Cell<u32>,
    /// Number of events consumed. Written by the consumer only.
    pub(crate) taken: AtomicU32,
    /// Events that the consumer had taken out but not read when it was dropped.
    pub(crate) unread: Cell<*const Slot>,
    /// The header that says how many bytes are reserved for a sender's address; only for streams of
    /// datagrams.
    message: Option<Box<libc::msghdr>>,
    /// Set if each receive is an operation of its own, so that the kernel checks each time whether
    /// the peer has closed.
    single_shot: bool,
    /// The buffer outside of the pool that the next receive fills.
    unpooled: Cell<Option<Box<UnpooledBuffer>>>,
}

// SAFETY: the message header points to nothing. The other fields are used by one thread at a time:
// the ring's owner or, when the ring is gone, the handle's thread.
unsafe impl Send for StreamOp {}

// SAFETY: the entry points only to memory that the operation owns until its completion: to the
// message header, which lies in a box and is only read, and to the buffer outside of the pool. All
// other data goes into buffers of the pool. `fd` keeps the descriptor open. The operation completes
// more than once, which the driver handles by the slot's kind.
unsafe impl Operation for StreamOp {
    const DROP_RUNS_USER_CODE: bool = false;

    type Output = ();

    fn entry(&mut self) -> squeue::Entry {
        match self.kind {
            Kind::Recv if let Some(message) = &self.message => opcode::RecvMsgMulti::new(
                self.fd.target(),
                ptr::from_ref(&**message),
                pools::group(self.level),
            )
            .ioprio(POLL_FIRST)
            .build(),
            Kind::Recv if let Some(unpooled) = self.unpooled.get_mut() => {
                let room = unpooled.0.spare_capacity_mut();
                let length = u32::try_from(room.len()).unwrap_or(u32::MAX);
                opcode::Recv::new(self.fd.target(), room.as_mut_ptr().cast(), length).build()
            }
            Kind::Recv => opcode::Recv::new(self.fd.target(), ptr::null_mut(), 0)
                .ioprio(if self.single_shot {
                    POLL_FIRST
                } else {
                    MULTISHOT | POLL_FIRST
                })
                .buf_group(pools::group(self.level))
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            Kind::Accept | Kind::Once => opcode::AcceptMulti::new(self.fd.target())
                .flags(libc::SOCK_CLOEXEC)
                .build(),
        }
    }

    fn complete(self, _result: i32, _flags: u32) {}
}

/// Returns the stream in a slot.
///
/// # Safety
/// The slot holds a stream that is alive. Other threads than the ring's touch only `taken`.
pub(crate) unsafe fn stream_of(slot: &Slot) -> &StreamOp {
    // SAFETY: the caller guarantees that the slot holds a stream that is alive.
    unsafe { &*Stored::<StreamOp>::value_ptr(slot.payload()) }
}

impl Driver {
    pub(crate) fn start_stream(
        &self,
        fd: Fd,
        kind: Kind,
        level: u8,
        message: Option<Box<libc::msghdr>>,
        single_shot: bool,
    ) -> Result<&Slot, i32> {
        if self.closing.get() {
            return Err(libc::ECANCELED);
        }
        if kind == Kind::Recv
            && let Err(error) = self.pools.provide(level, &self.backend)
        {
            return Err(errno_of(&error));
        }
        let Some(slot) = self.slab.take() else {
            count(&self.counters.refused);
            return Err(libc::EBUSY);
        };
        let stream = StreamOp {
            fd,
            kind,
            level,
            pushed: Cell::new(0),
            taken: AtomicU32::new(0),
            unread: Cell::new(ptr::null()),
            message,
            // The readiness driver reads until the socket is empty.
            single_shot: single_shot && self.backend.mode() != Mode::Readiness,
            unpooled: Cell::new(None),
        };
        // SAFETY: a slot fresh from the slab has a free payload.
        unsafe { Stored::put(slot.payload(), stream) };
        slot.table.set(Stored::<StreamOp>::TABLE);
        slot.kind.set(kind);
        slot.level.set(level);
        self.handles.set(self.handles.get() + 1);
        self.launch(slot);
        Ok(slot)
    }

    /// Arms an idle stream at its consumer's request (6).
    pub(crate) fn arm(&self, slot: &Slot) {
        if slot.state.get() != SlotState::Idle {
            return;
        }
        if !self.closing.get() {
            self.launch(slot);
        } else if let Some(waker) = self.deliver(slot, -libc::ECANCELED, 0, None) {
            self.wake(slot.level.get(), waker);
        }
    }

    /// Handles a completion of a stream, or the end of a stream that never left the backlog.
    pub(crate) fn handle_stream_completion(&self, slot: &Slot, result: i32, flags: u32) {
        let mut buffer = cqueue::buffer_select(flags);
        if buffer.is_some()
            && let Some(pool) = self.pools.get(slot.level.get())
        {
            pool.count_taken();
        }
        let is_last = !cqueue::more(flags);
        if is_last {
            self.in_flight.end(slot.level.get());
            slot.state.set(SlotState::Idle);
        }
        if slot.has_mark(ORPHAN) {
            self.discard(slot, result, buffer);
            if is_last {
                self.dispose(slot);
            } else {
                // Cancel once more, because the kernel may miss an operation that is busy.
                slot.unmark(CANCELLED);
                self.cancel(slot);
            }
            return;
        }
        let has_data = match slot.kind.get() {
            Kind::Recv => result > 0,
            Kind::Accept | Kind::Once => result >= 0,
        };
        // SAFETY: the slot holds a stream that is alive, because the slot is no orphan.
        let unpooled = unsafe { stream_of(slot) }.unpooled.take();
        let mut waker = None;
        if has_data && let Some(mut unpooled) = unpooled {
            // SAFETY: the kernel has initialised the first `result` bytes.
            unsafe { unpooled.0.set_len(result as usize) };
            waker = self.deliver(slot, result, 0, Some(unpooled));
        } else if has_data {
            if buffer.is_some() {
                // The event becomes a `RecvBuf`, a handle of its own.
                self.handles.set(self.handles.get() + 1);
            }
            waker = self.deliver(slot, result, flags, None);
        } else if let Some(id) = buffer.take() {
            self.recycle(slot.level.get(), id);
        }
        if is_last {
            slot.unmark(CANCELLED);
            let is_starved = result == -libc::ENOBUFS && slot.kind.get() == Kind::Recv;
            if is_starved {
                count(&self.counters.enobufs);
            }
            let resumes = has_data || is_starved || result == -libc::ECANCELED;
            let second_waker = if resumes && self.closing.get() {
                self.deliver(slot, -libc::ECANCELED, 0, None)
            } else if resumes && (self.is_behind(slot) || (is_starved && self.has_unread(slot))) {
                count(&self.counters.stalled);
                self.deliver(slot, STALLED, 0, None)
            } else if is_starved {
                self.starve(slot);
                None
            } else if resumes {
                self.launch(slot);
                None
            } else {
                self.deliver(slot, result, 0, None)
            };
            waker = waker.or(second_waker);
        } else if self.is_behind(slot) {
            self.cancel(slot);
        }
        // The wake comes last, because it may run user code, which may even end this stream.
        if let Some(waker) = waker {
            self.wake(slot.level.get(), waker);
        }
    }

    fn unread_count(&self, slot: &Slot) -> u32 {
        // SAFETY: the slot holds a stream that is alive, because the slot is no orphan or its last
        // completion is being handled.
        let stream = unsafe { stream_of(slot) };
        let taken = stream.taken.load(Ordering::Relaxed);
        stream.pushed.get().wrapping_sub(taken)
    }

    /// Returns whether a stream of bytes has delivered an event that is unread. Returns false for
    /// datagrams, because they must not wait for their consumer. Otherwise the socket's queue would
    /// overflow and lose datagrams.
    fn has_unread(&self, slot: &Slot) -> bool {
        // SAFETY: as in `unread_count`.
        unsafe { stream_of(slot) }.message.is_none() && self.unread_count(slot) > 0
    }

    fn is_behind(&self, slot: &Slot) -> bool {
        self.unread_count(slot)
            >= match slot.kind.get() {
                Kind::Recv => self.recv_window,
                Kind::Accept | Kind::Once => self.accept_window,
            }
    }

    /// Handles the lack of a buffer (7). A byte stream allocates a buffer; a datagram stream waits
    /// for one.
    #[cold]
    fn starve(&self, slot: &Slot) {
        // SAFETY: as in `unread_count`.
        let stream = unsafe { stream_of(slot) };
        if stream.message.is_none() {
            count(&self.counters.unpooled);
            let size = self.pools.buffer_size();
            let unpooled = UnpooledBuffer(Vec::with_capacity(size));
            stream.unpooled.set(Some(Box::new(unpooled)));
            self.launch(slot);
            return;
        }
        if self.starved.is_empty() {
            // Messages posted earlier are read before the ring sleeps.
            self.mail.set_starved(true);
        }
        slot.state.set(SlotState::Starved);
        self.starved.push(slot);
    }

    fn next_starved(&self, levels: u64) -> Option<&Slot> {
        let slot = self.starved.pop_from(levels)?;
        if self.starved.is_empty() {
            self.mail.set_starved(false);
        }
        slot.state.set(SlotState::Idle);
        Some(slot)
    }

    /// Arms as many starved streams as there are buffers (8).
    #[inline]
    pub(crate) fn feed(&self) {
        if self.starved.is_empty() {
            return;
        }
        for level in 0..LEVELS as u8 {
            if self.starved.occupied() & 1 << level == 0 {
                continue;
            }
            let available = self.pools.get(level).map_or(0, Pool::available);
            for _ in 0..available {
                let Some(slot) = self.next_starved(1 << level) else {
                    break;
                };
                self.launch(slot);
            }
        }
    }

    #[inline]
    pub(crate) fn is_feed_due(&self) -> bool {
        !self.starved.is_empty() && self.can_feed()
    }

    #[cold]
    fn can_feed(&self) -> bool {
        let mut levels = self.starved.occupied();
        while levels != 0 {
            let level = levels.trailing_zeros() as u8;
            if self
                .pools
                .get(level)
                .is_some_and(|pool| pool.available() > 0)
            {
                return true;
            }
            levels &= levels - 1;
        }
        false
    }

    pub(crate) fn end_starved(&self) {
        while let Some(slot) = self.next_starved(u64::MAX) {
            self.arm(slot);
        }
    }

    /// Makes an event and hands it to the stream's consumer. Returns the waker to call.
    fn deliver(
        &self,
        slot: &Slot,
        result: i32,
        flags: u32,
        unpooled: Option<Box<UnpooledBuffer>>,
    ) -> Option<Waker> {
        // SAFETY: as in `unread_count`.
        let stream = unsafe { stream_of(slot) };
        stream.pushed.set(stream.pushed.get().wrapping_add(1));
        let event = self.slab.take_event();
        event.state.set(SlotState::Done);
        event.result.set(result);
        event.flags.set(flags & !UNPOOLED);
        if let Some(unpooled) = unpooled {
            event.flags.set(flags | UNPOOLED);
            // SAFETY: the payload of an event is free, and large and aligned enough for a pointer.
            unsafe {
                event
                    .payload()
                    .cast::<*mut UnpooledBuffer>()
                    .write(Box::into_raw(unpooled));
            }
        }
        event.level.set(slot.level.get());
        slot.deliver(event)
    }

    /// Gives a buffer back to the kernel.
    #[inline]
    pub(crate) fn recycle(&self, level: u8, id: u16) {
        if let Some(pool) = self.pools.get(level) {
            pool.publish(id);
        }
    }

    /// Returns the buffer of an event to the kernel, and the event to the slab.
    #[inline]
    pub(crate) fn recycle_event(&self, event: &Slot) {
        if let Some(id) = cqueue::buffer_select(event.flags.get()) {
            self.recycle(event.level.get(), id);
        }
        self.slab.give_back(event);
    }

    /// Releases the resources of a completion without a consumer.
    fn discard(&self, stream: &Slot, result: i32, buffer: Option<u16>) {
        if let Some(id) = buffer {
            self.recycle(stream.level.get(), id);
        } else if stream.kind.get() == Kind::Accept {
            discard_connection(result);
        }
    }

    pub(crate) fn abandon_stream(&self, slot: &Slot) {
        // SAFETY: the stream is alive, because it is freed below at the earliest.
        let unread = unsafe { stream_of(slot) }.unread.get();
        for mut event in [unread, slot.inbox.take(true).cast_const()] {
            // SAFETY: the pointer is valid, because events live until they are returned to the
            // slab.
            while let Some(current) = unsafe { event.as_ref() } {
                event = current.next.get();
                // SAFETY: the consumer is gone, so the event belongs to the ring's thread.
                drop(unsafe { take_unpooled(current) });
                let buffer = cqueue::buffer_select(current.flags.get());
                if buffer.is_some() {
                    self.handles.set(self.handles.get() - 1);
                }
                self.discard(slot, current.result.get(), buffer);
                self.slab.give_back(current);
            }
        }
        match slot.state.get() {
            SlotState::Starved => {
                self.starved.remove(slot);
                if self.starved.is_empty() {
                    self.mail.set_starved(false);
                }
                self.dispose(slot);
            }
            SlotState::Backlog | SlotState::Held | SlotState::InFlight => self.orphan(slot),
            SlotState::Idle | SlotState::Done | SlotState::Free => self.dispose(slot),
        }
    }
}

/// Closes the connection in the result of an accept, if there is one.
pub(crate) fn discard_connection(result: i32) {
    if result >= 0 {
        // SAFETY: the kernel made this descriptor for this ring and no other code knows it, so the
        // `OwnedFd` is its only owner.
        drop(unsafe { OwnedFd::from_raw_fd(result) });
    }
}
