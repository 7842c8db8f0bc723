//! The network: TCP by `smoltcp`, in one coroutine of the kernel.
//!
//! ```text
//!  program ── call ─► Socket (socket.rs) ──┐ put, take, wait   lock of the stack
//!                        ▲ bell            ▼
//!                        └──────────── Stack ◄── coroutine: at most BUDGET frames a poll
//!                                        │
//!                                      Link (link.rs): the card, or back to ourselves
//! ```
//!
//! The coroutine is woken by the card's interrupt, by calls that have changed something, and by
//! the clock. It handles one frame at a time under the lock, at most [`BUDGET`] a poll, and
//! goes to the tail of its level then; so a flood holds no hart. Its level is that of the most
//! urgent call that waits for the network, or that has given it something to do.
//!
//! A packet costs O(sockets), of which there are at most [`SOCKETS`].

mod link;
mod socket;

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll};

use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet, SocketStorage,
};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, Ipv4Address};
use upshift_core::{CoroutineId, Level, Priority};

use crate::arch::lock::{IrqLock, Once};
use crate::devices::{Line, Network};
use crate::machine::Machine;
use crate::sleep::{Sleep, sleep_until};
use crate::{clock, executor, println};
use link::Link;
pub(crate) use socket::Socket;

/// Sockets of all programs, those that wait for a connection included.
const SOCKETS: usize = 128;
/// Frames a poll.
const BUDGET: usize = 16;
/// What QEMU's network gives its first guest, and its gateway.
const OURS: [u8; 4] = [10, 0, 2, 15];
const GATEWAY: [u8; 4] = [10, 0, 2, 2];
/// A connection that nobody has any more is reset when its peer says nothing for so long: a
/// few times the first time-out for a frame that is lost, which is a second.
const LINGER: Duration = Duration::from_secs(5);

/// The stack, behind its lock.
struct Stack {
    interface: Interface,
    link: Link,
    sockets: SocketSet<'static>,
    /// How many there are.
    count: usize,
    /// Those that nobody has any more, until their connections are over.
    closing: Vec<SocketHandle>,
    /// Those that nothing more will be written to, once what was written has been
    /// acknowledged: see [`Stack::end`].
    ending: Vec<SocketHandle>,
    /// How many calls of each level wait, and which levels these are.
    waiting: [u16; upshift_core::LEVELS],
    levels: u64,
    /// The levels of those that have given it something to do since it last had nothing.
    kicked: u64,
    coroutine: CoroutineId,
}

static NET: Once<IrqLock<Stack>> = Once::new();
static LINE: Once<Line> = Once::new();
/// The coroutine, for the handler, which takes no lock of the network.
static COROUTINE: AtomicU64 = AtomicU64::new(0);

fn now() -> Instant {
    let micros = u128::from(clock::now()) * 1_000_000 / u128::from(clock::ticks_per_second());
    Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

/// Finds the card and starts the coroutine, while booting.
pub(crate) fn init(machine: &Machine) {
    let network = Network::find(machine);
    if let Some(network) = &network {
        let [a, b, c, d, e, f] = network.card.address();
        println!("upshift: network card {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        LINE.set(network.line);
        network.attach(|_| interrupt());
    }
    let mut link = Link::new(network.map(|network| network.card), OURS);
    let address = HardwareAddress::Ethernet(EthernetAddress(link.address()));
    let mut config = Config::new(address);
    config.random_seed = clock::now();
    let mut interface = Interface::new(config, &mut link, now());
    interface.update_ip_addrs(|addresses| {
        let ours = IpCidr::new(IpAddress::Ipv4(Ipv4Address::from(OURS)), 24);
        let own = IpCidr::new(IpAddress::v4(127, 0, 0, 1), 8);
        // There is room for two.
        let _ = addresses.push(ours);
        let _ = addresses.push(own);
    });
    let gateway = Ipv4Address::from(GATEWAY);
    // There is room for one.
    let _ = interface.routes_mut().add_default_ipv4_route(gateway);
    let mut storage = Vec::new();
    storage.resize_with(SOCKETS, || SocketStorage::EMPTY);
    let closing = Vec::with_capacity(SOCKETS);
    let started = executor::spawn(
        Run { sleep: None },
        Priority::At(executor::LEAST_URGENT_WORK),
    );
    let coroutine = started.expect("memory to boot");
    let stack = Stack {
        interface,
        link,
        sockets: SocketSet::new(storage.leak() as &mut [_]),
        count: 0,
        closing,
        ending: Vec::with_capacity(SOCKETS),
        waiting: [0; upshift_core::LEVELS],
        levels: 0,
        kicked: 0,
        coroutine: coroutine.id(),
    };
    COROUTINE.store(coroutine.id().to_u64(), Relaxed);
    NET.set(IrqLock::new(stack));
    coroutine.detach();
    wake();
}

/// Takes the card away from the stack, or gives it back.
#[cfg(feature = "selftest")]
pub(crate) fn exchange_card(card: Option<crate::devices::Card>) -> Option<crate::devices::Card> {
    let mut stack = NET.get().lock();
    core::mem::replace(&mut stack.link.card, card)
}

/// How often the card has interrupted.
#[cfg(feature = "selftest")]
pub(crate) static INTERRUPTS: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(0);

/// The handler of the card's interrupt.
fn interrupt() {
    #[cfg(feature = "selftest")]
    INTERRUPTS.fetch_add(1, Relaxed);
    if let Some(line) = LINE.try_get() {
        line.acknowledge();
    }
    wake();
}

fn wake() {
    // It never ends.
    let _ = executor::domain().wake(CoroutineId::from_u64(COROUTINE.load(Relaxed)));
}

impl Stack {
    /// A call of this level waits, or not any more.
    fn wait(&mut self, level: Level, begins: bool) {
        let count = &mut self.waiting[usize::from(level.get())];
        match begins {
            true => *count += 1,
            false => *count -= 1,
        }
        match *count {
            0 => self.levels &= !level.bit(),
            _ => self.levels |= level.bit(),
        }
        self.settle();
    }

    /// A call of this level has given the coroutine something to do.
    fn kick(&mut self, level: Level) {
        self.kicked |= level.bit();
        self.settle();
        let _ = executor::domain().wake(self.coroutine);
    }

    /// The coroutine is as urgent as the most urgent of these.
    fn settle(&mut self) {
        let least = executor::LEAST_URGENT_WORK;
        let most = (self.levels | self.kicked).trailing_zeros() as u8;
        let level = Level::new(most).unwrap_or(least).min(least);
        let domain = executor::domain();
        if domain.level(self.coroutine) != Ok(level) {
            let _ = domain.reprio(self.coroutine, level);
        }
    }

    /// Handles a frame that has come in. False: there is none, or no room for an answer.
    fn take_frame(&mut self) -> bool {
        let taken = self
            .interface
            .poll_ingress_single(now(), &mut self.link, &mut self.sockets);
        !matches!(taken, PollIngressSingleResult::None)
    }

    /// Sends what there is to be sent. True: there was something.
    fn send_frames(&mut self) -> bool {
        let sent = self
            .interface
            .poll_egress(now(), &mut self.link, &mut self.sockets);
        matches!(sent, PollResult::SocketStateChanged)
    }

    fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Nothing more will be written to a socket.
    ///
    /// If its peer has ended, too, not before all is acknowledged: in LAST-ACK `smoltcp` does
    /// not look at a window that the peer opens again.
    fn end(&mut self, handle: SocketHandle) {
        let socket = self.tcp(handle);
        if socket.state() != tcp::State::CloseWait || socket.send_queue() == 0 {
            socket.close();
        } else if !self.ending.contains(&handle) {
            self.ending.push(handle);
        }
    }

    /// Ends what was to be ended, and drops the sockets of connections that are over. True:
    /// there is something to be sent for that.
    fn clear(&mut self) -> bool {
        let mut more = false;
        for index in (0..self.ending.len()).rev() {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.ending[index]);
            if socket.state() != tcp::State::CloseWait || socket.send_queue() == 0 {
                socket.close();
                self.ending.swap_remove(index);
                more = true;
            }
        }
        for index in (0..self.closing.len()).rev() {
            let handle = self.closing[index];
            let socket = self.tcp(handle);
            if is_over(socket) {
                self.closing.swap_remove(index);
                self.remove(handle);
            } else if socket.recv_queue() > 0 {
                // Nobody will read it.
                socket.abort();
                more = true;
            }
        }
        more
    }

    fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
        self.count -= 1;
    }

    /// When there is something to do for the clock, in its ticks.
    fn deadline(&mut self) -> Option<u64> {
        let now = now();
        let delay = self.interface.poll_delay(now, &self.sockets)?;
        Some(clock::now() + clock::from_micros(delay.total_micros()))
    }
}

/// Is the connection over? What TIME-WAIT is for is left to the peer; a reset has been sent
/// when nothing is known of the peer any more.
fn is_over(socket: &tcp::Socket<'_>) -> bool {
    match socket.state() {
        tcp::State::Closed => socket.remote_endpoint().is_none(),
        state => state == tcp::State::TimeWait,
    }
}

/// The coroutine.
struct Run {
    sleep: Option<Sleep>,
}

impl Future for Run {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(net) = NET.try_get() else {
            return Poll::Pending;
        };
        let mut left = BUDGET;
        while left > 0 && net.lock().take_frame() {
            left -= 1;
        }
        let mut stack = net.lock();
        let sent = stack.send_frames();
        let more = stack.clear();
        if left == 0 || sent || more {
            // More, after others of its level.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        stack.kicked = 0;
        stack.settle();
        let deadline = match stack.link.is_full() {
            true => None,
            false => stack.deadline(),
        };
        drop(stack);
        self.sleep = deadline.map(sleep_until);
        if let Some(sleep) = &mut self.sleep
            && Pin::new(sleep).poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
