//! The network stack: TCP and UDP by `smoltcp`, run by a kernel coroutine.
//!
//! ```text
//!  program ── call ─► Socket (socket/) ── bytes, waits ─► endpoint (endpoint.rs), a lock each
//!                        │ add_work                           ▲
//!                        ▼                                    │ one frame
//!                     Requests (requests.rs) ─► NetworkTask ─► Stack: table of sockets
//!                                                   ▲         │
//!                                                   └─ Link (link.rs): the card or the loopback
//! ```
//!
//! A system call that reads, writes or waits takes only the lock of its socket and leaves a request
//! in [`requests`]; only calls that create or close sockets take the lock of the stack. The
//! coroutine handles the most urgent frame first, incoming or outgoing, and is as urgent as that
//! frame. Until a frame from the card is parsed, its recipient is unknown, so the frame counts as
//! being as urgent as the most urgent waiting call. The card's interrupt and the clock wake the
//! coroutine, which handles one frame at a time under the lock and goes to the tail of its level
//! after [`MAX_FRAMES_PER_POLL`] frames; so a flood does not occupy a hart. While the coroutine has
//! frames to handle, the card does not interrupt.
//!
//! Handling a frame costs O(log sockets), because it updates the deadline of the frame's socket. It
//! does not touch other sockets. There are at most [`SOCKETS`] sockets.

mod address;
mod checksum;
mod connections;
mod coroutine;
mod deadlines;
mod endpoint;
mod link;
mod lists;
mod requests;
#[cfg(feature = "selftest")]
pub(crate) mod selftest;
mod socket;
mod table;

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, HardwareAddress};
use upshift_core::{CoroutineId, Level, Priority};

use crate::arch::lock::{IrqLock, Once};
use crate::devices::{InterruptAck, NetworkDevice};
use crate::levels::LevelFollower;
use crate::machine::Machine;
use crate::{clock, executor, println};
use coroutine::NetworkTask;
use endpoint::endpoint;
use link::Link;
use lists::Index;
use requests::requests;
pub(crate) use socket::Socket;
use table::{Key, Owner, Table};

/// Maximum number of sockets of all programs, including those of backlogs.
pub(crate) const SOCKETS: usize = 1024;
/// Maximum number of frames, and of deadlines, that the coroutine handles in a poll.
const MAX_FRAMES_PER_POLL: usize = 16;
/// Maximum number of frames that a socket sends before another socket of its level sends: as many
/// as fill its buffer, so that bytes that were written at once can be read at once.
const MAX_BURST: usize = 3;
/// Time without a frame from the peer after which a connection without an owner is reset: several
/// times the first time-out for a lost frame, which is a second. After the same time, a half-open
/// connection, which the peer has begun and does not confirm, is reset.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a silent peer is probed. A peer that does not answer is considered gone after
/// [`STALL_TIMEOUT`].
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// Maximum delay of an acknowledgement on the loopback. An acknowledgement is sent with an answer
/// if there is one by then. When more than one frame is unacknowledged, it is sent at once. The
/// delay is harmless, because the loopback loses no frame, and neither end waits for an
/// acknowledgement before it sends.
const ACK_DELAY: Duration = Duration::from_millis(40);
/// Time after which a peer that sends no frame is considered gone. A peer that acknowledges nothing
/// for this time is considered gone, too, even if it sends frames.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Time after which a connection without an owner is reset, even if its peer sends frames, because
/// a peer whose window stays 0 would keep the connection for ever.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before a send is repeated that has failed although the link had space.
const RETRY_DELAY: Duration = Duration::from_millis(1);

struct Stack {
    interface: Interface,
    link: Link,
    table: Table,
    /// Socket set for frames that belong to no socket.
    unmatched: SocketSet<'static>,
    /// Sockets that have announced a frame, but could not send it; see [`table::Slot::is_stuck`].
    stuck: Vec<Index>,
    /// Socket that has sent the last frame, and the number of frames that it has sent in a row.
    burst: (Index, usize),
    /// True while outgoing frames precede equally urgent incoming frames.
    is_sending: bool,
    /// Time at which the clock wakes the coroutine.
    alarm: Option<Instant>,
}

static NET: Once<IrqLock<Stack>> = Once::new();
static INTERRUPT_ACK: Once<InterruptAck> = Once::new();
/// Id of the coroutine, for the interrupt handler, which takes no lock of the network.
static COROUTINE: AtomicU64 = AtomicU64::new(0);

fn now() -> Instant {
    Instant::from_micros(i64::try_from(clock::to_micros(clock::now())).unwrap_or(i64::MAX))
}

/// Initializes the card and starts the coroutine, while booting. For `address` see [`address`].
pub(crate) fn init(machine: &Machine, address: Option<&str>) {
    let network = NetworkDevice::find(machine);
    if let Some(network) = &network {
        let [a, b, c, d, e, f] = network.card.address();
        println!("upshift: network card {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        INTERRUPT_ACK.set(network.interrupt_ack);
        network.attach(|_| interrupt());
    }
    let has_card = network.is_some();
    let mut link = Link::new(network.map(|network| network.card));
    let hardware = HardwareAddress::Ethernet(EthernetAddress(link.address()));
    let mut config = Config::new(hardware);
    config.random_seed = clock::now();
    let least = executor::LEAST_URGENT_WORK;
    let interface = Interface::new(config, &mut link.port(None, least), now());
    let options = Priority::At(least);
    let coroutine = executor::spawn(NetworkTask::default(), options).expect("memory to boot");
    requests::init(LevelFollower::new(coroutine.id(), least), has_card);
    let mut stack = Stack {
        interface,
        link,
        table: Table::new(clock::now()),
        unmatched: SocketSet::new(Vec::new()),
        stuck: Vec::with_capacity(SOCKETS),
        burst: (0, 0),
        is_sending: true,
        alarm: None,
    };
    stack.configure_address(address);
    COROUTINE.store(coroutine.id().to_u64(), Relaxed);
    coroutine.detach();
    NET.set(IrqLock::new(stack));
    wake();
}

/// Removes the card from the stack, or restores it.
#[cfg(feature = "selftest")]
pub(crate) fn exchange_card(card: Option<crate::devices::Card>) -> Option<crate::devices::Card> {
    let old = NET.get().lock().link.exchange_card(card);
    wake();
    old
}

#[cfg(feature = "selftest")]
pub(crate) static INTERRUPTS: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(0);

#[cfg(feature = "selftest")]
static CARD_FRAMES: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

fn interrupt() {
    #[cfg(feature = "selftest")]
    INTERRUPTS.fetch_add(1, Relaxed);
    if let Some(interrupt_ack) = INTERRUPT_ACK.try_get() {
        interrupt_ack.acknowledge();
    }
    wake();
}

/// Wakes the coroutine, because there may be frames, or space for frames.
fn wake() {
    // The coroutine never ends.
    let _ = executor::domain().wake(CoroutineId::from_u64(COROUTINE.load(Relaxed)));
}

impl Stack {
    /// Records that a call of level `level` has work for a socket; the caller holds the lock of the
    /// stack.
    fn add_work(&mut self, index: Index, level: Level) {
        self.table.add_levels(index, level.bit());
        self.update_socket(index);
        self.wake_if_needed();
    }

    /// Wakes the coroutine if there are frames to handle, or if no alarm is set for the first
    /// deadline or an earlier time.
    fn wake_if_needed(&mut self) {
        let next = self.table.deadlines.first().map(|(deadline, _)| deadline);
        let is_alarm_late = next.is_some_and(|next| self.alarm.is_none_or(|alarm| next < alarm));
        let levels = self.levels();
        let mut requests = requests();
        requests.set_known_levels(levels);
        if is_alarm_late || levels != 0 {
            requests.wake();
        }
    }

    fn levels(&self) -> u64 {
        self.table.levels() | self.link.levels()
    }

    /// Applies the requests of calls to the table. Returns the levels of the waiting calls.
    fn apply_requests(&mut self) -> u64 {
        loop {
            let mut requests = requests();
            let Some((index, request)) = requests.next() else {
                return requests.waiting();
            };
            drop(requests);
            if request.levels == 0 {
                // The socket has been removed.
                continue;
            }
            self.table.add_levels(index, request.levels);
            if request.has_work {
                self.schedule(index);
            }
        }
    }

    /// Handles the most urgent frame, incoming or outgoing. Among equally urgent frames it stays
    /// with one direction until no frame is left. Returns false if there is no frame, or no space.
    fn handle_frame(&mut self) -> bool {
        let waiting = self.apply_requests();
        let card_levels = self.link.card.as_ref().map_or(0, |_| waiting);
        let incoming = self.link.levels() | card_levels;
        match (self.table.levels().trailing_zeros()).cmp(&incoming.trailing_zeros()) {
            Ordering::Less => self.is_sending = true,
            Ordering::Equal => {}
            Ordering::Greater => self.is_sending = false,
        }
        for _ in 0..2 {
            let is_handled = if self.is_sending {
                self.send_frame()
            } else {
                self.take_frame()
            };
            if is_handled {
                return true;
            }
            self.is_sending = !self.is_sending;
        }
        false
    }

    /// Handles an incoming frame. Returns false if there is no frame, or no space for an answer.
    fn take_frame(&mut self) -> bool {
        self.link.start_polling();
        let Some(frame) = self.link.take() else {
            return false;
        };
        #[cfg(feature = "selftest")]
        if frame.level().is_none() {
            CARD_FRAMES.fetch_add(1, Relaxed);
        }
        if self.link.is_spoofed(&frame)
            || self.link.is_too_long(&frame)
            || self.link.is_damaged(&frame)
        {
            self.link.give_back(frame);
            return true;
        }
        let bytes = frame.bytes();
        let recipient = self.find_recipient(bytes);
        // The answer is as urgent as the frame, if its level is known, because the sender waits for
        // the answer.
        let frame_level = frame.level().unwrap_or(executor::LEAST_URGENT_WORK);
        let level = recipient.map_or(frame_level, |index| {
            if frame.level().is_some() {
                self.table.add_levels(index, frame_level.bit());
            }
            self.table.slot(index).level()
        });
        let mut port = self.link.port(Some(bytes), level);
        let mut endpoint_guard = recipient.map(endpoint);
        let set = endpoint_guard
            .as_mut()
            .map_or(&mut self.unmatched, |endpoint| &mut endpoint.set);
        self.interface.poll_ingress_single(now(), &mut port, set);
        drop(endpoint_guard);
        let is_arp = bytes.get(12..14) == Some(&[8, 6]);
        self.link.give_back(frame);
        if let Some(index) = recipient {
            self.update_socket(index);
        }
        if is_arp {
            // The stuck sockets may wait for this ARP frame.
            while let Some(index) = self.stuck.pop() {
                self.table.slot(index).is_stuck = false;
                self.schedule(index);
            }
        }
        true
    }

    /// Returns the socket that a frame is for; for a SYN, a socket that can begin the connection.
    ///
    /// If the backlog of a listener is full, this aborts the connection that has waited longest for
    /// its confirmation, and returns its socket. So a flood of connections that are never confirmed
    /// excludes no peer that confirms before the flood has filled the backlog.
    fn find_recipient(&mut self, frame: &[u8]) -> Option<Index> {
        let key = Key::of(frame)?;
        if let Some(index) = self.table.find(key) {
            return Some(index);
        }
        let listener = self.table.find(key.wildcard());
        if !key.is_syn(frame) {
            return listener;
        }
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let oldest = self.table.oldest_half_open(key.port)?;
                endpoint(oldest).tcp().abort();
                self.update_socket(oldest);
                oldest
            }
        };
        self.table.reset_neighbour(listener);
        Some(listener)
    }

    /// Sends a frame of the most urgent socket that has one. Returns false if there is none, or no
    /// space.
    fn send_frame(&mut self) -> bool {
        let Some(index) = self.table.next_to_send() else {
            return false;
        };
        if self.link.is_full() {
            return false;
        }
        let mut port = self.link.port(None, self.table.slot(index).level());
        // The lock of the socket is held only during this call.
        let sent = (self.interface).poll_egress(now(), &mut port, &mut endpoint(index).set);
        let before = match self.burst {
            (socket, before) if socket == index => before,
            _ => 0,
        };
        self.burst = (index, before + 1);
        if before + 1 >= MAX_BURST || matches!(sent, PollResult::None) {
            self.table.end_burst(index);
            self.burst = (index, 0);
        }
        if !self.update_socket(index) || !matches!(sent, PollResult::None) {
            return true;
        }
        let owner = self.table.slot(index).owner;
        if owner == Owner::None && endpoint(index).tcp().state() == tcp::State::Closed {
            // The reset for the peer cannot be sent, because there is no route to the peer.
            self.remove(index);
            return true;
        }
        if self.table.has_to_send(index) {
            // The socket announced a frame, but did not send it.
            self.table.set_sending(index, false);
            self.table.deadlines.set(index, Some(now() + RETRY_DELAY));
        }
        let slot = self.table.slot(index);
        slot.lacks_neighbour = true;
        if !core::mem::replace(&mut slot.is_stuck, true) {
            self.stuck.push(index);
            self.add_own_neighbours();
            self.schedule(index);
        }
        true
    }
}
