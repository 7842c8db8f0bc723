//! The network: TCP and UDP by `smoltcp`, in a coroutine of the kernel that owns the stack.
//!
//! ```text
//!  program ── call ─► Socket (socket/) ── bytes, waits ─► endpoint (endpoint.rs), a lock each
//!                        │ kick                               ▲
//!                        ▼                                    │ one frame
//!                     Requests (requests.rs) ─► Networker ─► Stack: table of sockets
//!                                                   ▲         │
//!                                                   └─ Link (link.rs): the card or the loopback
//! ```
//!
//! A call that reads, writes or waits takes the lock of its own socket and leaves a word in the
//! [`requests`]; only calls that create or close sockets take the lock of the stack. The coroutine
//! handles the most urgent frame first, incoming or outgoing, and is as urgent as that frame. The
//! owner of a frame from the card is unknown until the frame is read: it may be the most urgent
//! waiting call. The card's interrupt and the clock wake the coroutine, which handles one frame at
//! a time under the lock and goes to the tail of its level after [`BUDGET`] frames; so a flood
//! occupies no hart. While it has frames to handle the card does not interrupt.
//!
//! A frame costs O(log sockets), for the deadline of its socket; the other sockets are not looked
//! at. There are at most [`SOCKETS`].

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
use crate::devices::{Line, Network};
use crate::levels::Follower;
use crate::machine::Machine;
use crate::{clock, executor, println};
use coroutine::Networker;
use endpoint::endpoint;
use link::Link;
use lists::Index;
use requests::requests;
pub(crate) use socket::Socket;
use table::{Key, Owner, Table};

/// Sockets of all programs, those that wait for a connection included.
pub(crate) const SOCKETS: usize = 1024;
/// Frames a poll.
const BUDGET: usize = 16;
/// Maximum number of frames that a socket sends before the turn of others of its level: as many as
/// fill its buffer. So bytes that were written at once can be read at once.
const TURN: usize = 3;
/// Time without a frame from the peer after which a connection without an owner is reset: a few
/// times the first time-out for a lost frame, which is a second. It also ends a connection that the
/// peer has begun and does not confirm.
const LINGER: Duration = Duration::from_secs(5);
/// Time after which a silent peer is probed; without an answer in the same time it is gone.
const ASK: Duration = Duration::from_secs(60);
/// Maximum delay of an acknowledgement within the machine. It travels with the next answer if there
/// is one by then, and at once for more than a frame. The loopback loses no frame, and neither end
/// waits for an acknowledgement before it sends.
const ACKNOWLEDGE: Duration = Duration::from_millis(40);
/// Time after which a peer that takes none of its waiting bytes is gone, even if it sends frames.
const GONE: Duration = Duration::from_secs(180);
/// Time after which a connection without an owner is reset, even if its peer sends frames: a peer
/// whose window stays 0 would keep the connection for ever.
const FAREWELL: Duration = Duration::from_secs(60);
/// Time after which a send that failed in spite of room is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// The stack, behind its lock.
struct Stack {
    interface: Interface,
    link: Link,
    table: Table,
    /// Receivers of the frames that are for no socket.
    unowned: SocketSet<'static>,
    /// Sockets that could not send at their last turn.
    silent: Vec<Index>,
    /// The socket whose turn it is to send, and the number of frames it has sent in this turn.
    turn: (Index, usize),
    /// True while outgoing frames have their turn among equally urgent ones.
    is_sending: bool,
    /// Time at which the clock wakes the coroutine.
    alarm: Option<Instant>,
}

static NET: Once<IrqLock<Stack>> = Once::new();
static LINE: Once<Line> = Once::new();
/// The coroutine, for the handler, which takes no lock of the network.
static COROUTINE: AtomicU64 = AtomicU64::new(0);

fn now() -> Instant {
    Instant::from_micros(i64::try_from(clock::to_micros(clock::now())).unwrap_or(i64::MAX))
}

/// Finds the card and starts the coroutine, while booting. `address`: see [`address`].
pub(crate) fn init(machine: &Machine, address: Option<&str>) {
    let network = Network::find(machine);
    if let Some(network) = &network {
        let [a, b, c, d, e, f] = network.card.address();
        println!("upshift: network card {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        LINE.set(network.line);
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
    let coroutine = executor::spawn(Networker::default(), options).expect("memory to boot");
    requests::init(Follower::new(coroutine.id(), least), has_card);
    let mut stack = Stack {
        interface,
        link,
        table: Table::new(clock::now()),
        unowned: SocketSet::new(Vec::new()),
        silent: Vec::with_capacity(SOCKETS),
        turn: (0, 0),
        is_sending: true,
        alarm: None,
    };
    stack.begin_with_address(address);
    COROUTINE.store(coroutine.id().to_u64(), Relaxed);
    coroutine.detach();
    NET.set(IrqLock::new(stack));
    wake();
}

/// Takes the card away from the stack, or gives it back.
#[cfg(feature = "selftest")]
pub(crate) fn exchange_card(card: Option<crate::devices::Card>) -> Option<crate::devices::Card> {
    let old = NET.get().lock().link.exchange_card(card);
    wake();
    old
}

/// Number of interrupts of the card.
#[cfg(feature = "selftest")]
pub(crate) static INTERRUPTS: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(0);

/// Number of frames from the card.
#[cfg(feature = "selftest")]
static BROUGHT: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// The handler of the card's interrupt.
fn interrupt() {
    #[cfg(feature = "selftest")]
    INTERRUPTS.fetch_add(1, Relaxed);
    if let Some(line) = LINE.try_get() {
        line.acknowledge();
    }
    wake();
}

/// Wakes the coroutine: there may be frames, and room for frames.
fn wake() {
    // The coroutine never ends.
    let _ = executor::domain().wake(CoroutineId::from_u64(COROUTINE.load(Relaxed)));
}

impl Stack {
    /// Notes work for a socket, by a call of this level, which holds the lock.
    fn kick(&mut self, index: Index, level: Level) {
        self.table.call(index, level.bit());
        self.changed(index);
        self.go_on();
    }

    /// Wakes the coroutine if there is work for it.
    fn go_on(&mut self) {
        let next = self.table.deadlines.first().map(|(deadline, _)| deadline);
        let is_late = next.is_some_and(|next| self.alarm.is_none_or(|alarm| next < alarm));
        let levels = self.levels();
        let mut requests = requests();
        requests.knows(levels);
        if is_late || levels != 0 {
            requests.wake();
        }
    }

    /// Returns the levels of incoming and outgoing frames.
    fn levels(&self) -> u64 {
        self.table.levels() | self.link.levels()
    }

    /// Takes in the requests of calls. Returns the levels of the waiting calls.
    fn let_calls_in(&mut self) -> u64 {
        loop {
            let mut requests = requests();
            let Some((index, request)) = requests.next() else {
                return requests.waiting();
            };
            drop(requests);
            if request.levels == 0 {
                // The socket is gone.
                continue;
            }
            self.table.call(index, request.levels);
            if request.has_work {
                self.schedule(index);
            }
        }
    }

    /// Handles the most urgent frame, incoming or outgoing; of equally urgent frames one kind until
    /// none is left. Returns false if there is none, or no room.
    fn handle_frame(&mut self) -> bool {
        let waiting = self.let_calls_in();
        let of_card = self.link.card.as_ref().map_or(0, |_| waiting);
        let came = self.link.levels() | of_card;
        match (self.table.levels().trailing_zeros()).cmp(&came.trailing_zeros()) {
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

    /// Handles an incoming frame. Returns false if there is none, or no room for an answer.
    fn take_frame(&mut self) -> bool {
        self.link.attend();
        let Some(frame) = self.link.take() else {
            return false;
        };
        #[cfg(feature = "selftest")]
        if frame.level().is_none() {
            BROUGHT.fetch_add(1, Relaxed);
        }
        if self.link.is_lie(&frame) || self.link.is_too_long(&frame) || self.link.is_damaged(&frame)
        {
            self.link.give_back(frame);
            return true;
        }
        let bytes = frame.bytes();
        let recipient = self.recipient(bytes);
        // The answer is as urgent as the frame, if that is known: its sender waits for it.
        let urgent = frame.level().unwrap_or(executor::LEAST_URGENT_WORK);
        let level = recipient.map_or(urgent, |index| {
            if frame.level().is_some() {
                self.table.call(index, urgent.bit());
            }
            self.table.slot(index).level()
        });
        let mut port = self.link.port(Some(bytes), level);
        let mut of_socket = recipient.map(endpoint);
        let set = of_socket
            .as_mut()
            .map_or(&mut self.unowned, |endpoint| &mut endpoint.set);
        self.interface.poll_ingress_single(now(), &mut port, set);
        drop(of_socket);
        let is_arp = bytes.get(12..14) == Some(&[8, 6]);
        self.link.give_back(frame);
        if let Some(index) = recipient {
            self.changed(index);
        }
        if is_arp {
            // The silent sockets may wait for this ARP frame.
            while let Some(index) = self.silent.pop() {
                self.table.slot(index).is_silent = false;
                self.schedule(index);
            }
        }
        true
    }

    /// Returns the socket that a frame is for.
    ///
    /// A listener without a place for another connection drops the one that has waited longest to
    /// be confirmed. So a flood of connections that are never confirmed keeps out no peer that
    /// confirms before the flood has filled all places.
    fn recipient(&mut self, frame: &[u8]) -> Option<Index> {
        let key = Key::of(frame)?;
        if let Some(index) = self.table.find(key) {
            return Some(index);
        }
        let place = self.table.find(key.any());
        if !key.begins(frame) {
            return place;
        }
        let place = match place {
            Some(place) => place,
            None => {
                let oldest = self.table.oldest_half_open(key.port)?;
                endpoint(oldest).tcp().abort();
                self.changed(oldest);
                oldest
            }
        };
        self.table.turns_to_another(place);
        Some(place)
    }

    /// Lets the most urgent socket with something to send send a frame. Returns false if there is
    /// none, or no room.
    fn send_frame(&mut self) -> bool {
        let Some(index) = self.table.next_to_send() else {
            return false;
        };
        if self.link.is_full() {
            return false;
        }
        let mut port = self.link.port(None, self.table.slot(index).level());
        // The socket's lock is held for this call only.
        let sent = (self.interface).poll_egress(now(), &mut port, &mut endpoint(index).set);
        let before = match self.turn {
            (whose, before) if whose == index => before,
            _ => 0,
        };
        self.turn = (index, before + 1);
        if before + 1 >= TURN || matches!(sent, PollResult::None) {
            self.table.had_its_turn(index);
            self.turn = (index, 0);
        }
        if !self.changed(index) || !matches!(sent, PollResult::None) {
            return true;
        }
        let owner = self.table.slot(index).owner;
        if owner == Owner::None && endpoint(index).tcp().state() == tcp::State::Closed {
            // There is no route to the socket's peer, to which a reset would be sent.
            self.remove(index);
            return true;
        }
        if self.table.has_to_send(index) {
            // The socket reported a frame to send, and has none.
            self.table.sends(index, false);
            self.table.deadlines.set(index, Some(now() + AGAIN));
        }
        let slot = self.table.slot(index);
        slot.lacks_neighbour = true;
        if !core::mem::replace(&mut slot.is_silent, true) {
            self.silent.push(index);
            self.know_ourselves();
            self.schedule(index);
        }
        true
    }
}
