//! The network: the card, if the machine has one.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::arch::lock::{IrqLock, Once};
use crate::devices::{Card, Line, Network};
use crate::machine::Machine;
use crate::println;
use crate::waiters::{Awaited, Waiters};

/// The card, and who waits for it.
pub(crate) struct Net {
    pub(crate) card: Card,
    waiters: Waiters,
}

impl Awaited for Net {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

static NET: Once<IrqLock<Net>> = Once::new();
static LINE: Once<Line> = Once::new();
static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

/// Finds the card, while booting.
pub(crate) fn init(machine: &Machine) {
    if let Some(network) = Network::find(machine) {
        let [a, b, c, d, e, f] = network.card.address();
        println!("upshift: network card {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        LINE.set(network.line);
        network.attach(|_| interrupt());
        NET.set(IrqLock::new(Net {
            card: network.card,
            waiters: Waiters::new(),
        }));
    }
}

/// The handler of the card's interrupt.
fn interrupt() {
    INTERRUPTS.fetch_add(1, Relaxed);
    if let Some(line) = LINE.try_get() {
        line.acknowledge();
    }
    if let Some(net) = NET.try_get() {
        let waiters = net.lock().waiters.take();
        waiters.wake();
    }
}

/// The card, if there is one.
pub(crate) fn net() -> Option<&'static IrqLock<Net>> {
    NET.try_get()
}

/// How often the card has interrupted.
pub(crate) fn interrupts() -> usize {
    INTERRUPTS.load(Relaxed)
}
