//! Assigns the interrupt sources of devices to handlers and to harts.
//!
//! A source is attached once, to a handler, and interrupts one hart. Online harts take turns, so
//! that devices are spread over harts; [`route`] moves a source. A handler wakes coroutines and
//! does nothing else; the coroutines run on any hart. An interrupt costs a claim and a completion
//! at the controller, and a table look-up.

#[allow(unsafe_code)]
mod virtio;
#[allow(unsafe_code)]
mod virtio_blk;
#[allow(unsafe_code)]
mod virtio_net;

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
#[cfg(feature = "selftest")]
use core::sync::atomic::Ordering::SeqCst;

use crate::arch::hart_index;
use crate::arch::lock::{IrqLock, Once};
use crate::arch::plic::Plic;
use crate::hart;
use crate::machine::{Device, Machine};
pub(crate) use virtio::InterruptAck;
pub(crate) use virtio_blk::{BLOCK, Disk, Request, RequestMemory};
pub(crate) use virtio_net::{Card, Received};

/// Number of sources that can be attached; `-machine virt` has fewer.
const SOURCES: usize = 128;

struct Handler {
    function: fn(usize),
    argument: usize,
}

static HANDLERS: [Once<Handler>; SOURCES] = [const { Once::new() }; SOURCES];

/// The controller, and the lock for its enable registers, each of which serves several sources.
static PLIC: Once<(Plic, IrqLock<()>)> = Once::new();

/// Hart to which the next source is routed.
static NEXT_HART: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn init(machine: &Machine) {
    if let Some(plic) = machine.plic.and_then(Plic::new) {
        PLIC.set((plic, IrqLock::new(())));
    }
}

pub(crate) struct NetworkDevice {
    pub(crate) card: Card,
    pub(crate) interrupt_ack: InterruptAck,
    device: Device,
}

impl NetworkDevice {
    pub(crate) fn find(machine: &Machine) -> Option<NetworkDevice> {
        machine.virtio.iter().find_map(|device| {
            Some(NetworkDevice {
                card: Card::new(*device)?,
                interrupt_ack: InterruptAck::new(*device)?,
                device: *device,
            })
        })
    }

    pub(crate) fn attach(&self, function: fn(usize)) {
        attach(self.device, function, 0);
    }
}

/// Returns the first disk of the machine and its interrupt registers. Each interrupt of the disk
/// calls `function`.
pub(crate) fn find_disk(machine: &Machine, function: fn(usize)) -> Option<(Disk, InterruptAck)> {
    machine.virtio.iter().find_map(|device| {
        let disk = (Disk::new(*device)?, InterruptAck::new(*device)?);
        attach(*device, function, 0);
        Some(disk)
    })
}

/// Calls `function(argument)` whenever the device interrupts, on the next hart in turn.
///
/// # Panics
/// If the source of the device already has a handler, which is an error in the boot order.
pub(crate) fn attach(device: Device, function: fn(usize), argument: usize) {
    let source = device.interrupt();
    let Some(handler) = HANDLERS.get(source as usize) else {
        return;
    };
    handler.set(Handler { function, argument });
    let harts = hart::online().len();
    let first = NEXT_HART.fetch_add(1, Relaxed);
    // A hart without a context is skipped.
    let _ = (0..harts).any(|n| route(source, (first + n) % harts));
}

/// Routes a source only to hart `index`; a hart that has already claimed an interrupt still serves
/// it. Returns false if the hart cannot be interrupted. The firmware leaves a context closed, so
/// the function opens the context, even for a hart that starts late.
pub(crate) fn route(source: u32, index: usize) -> bool {
    let Some((plic, lock)) = PLIC.try_get() else {
        return false;
    };
    let Some(context) = hart::at(index).plic_context() else {
        return false;
    };
    let _guard = lock.lock();
    plic.open(context);
    for other in hart::online().iter().filter_map(hart::Hart::plic_context) {
        plic.enable(source, other, other == context);
    }
    true
}

/// Closes the contexts of all harts, as the firmware leaves them.
#[cfg(feature = "selftest")]
pub(crate) fn close_all() {
    let contexts = hart::online().iter().filter_map(hart::Hart::plic_context);
    if let Some((plic, _)) = PLIC.try_get() {
        contexts.for_each(|context| plic.close(context));
    }
}

/// Number of harts that serve interrupts at this moment.
#[cfg(feature = "selftest")]
static SERVING: AtomicUsize = AtomicUsize::new(0);

/// Waits until no hart serves an interrupt that it claimed before its source was moved.
#[cfg(feature = "selftest")]
pub(crate) async fn wait_idle() {
    while SERVING.load(SeqCst) != 0 {
        // The host may not run the thread of that hart for a while.
        let soon = crate::clock::now() + crate::clock::from_micros(100);
        crate::sleep::sleep_until(soon).await;
    }
}

pub(crate) fn serve() {
    #[cfg(feature = "selftest")]
    SERVING.fetch_add(1, SeqCst);
    claim_all();
    #[cfg(feature = "selftest")]
    SERVING.fetch_sub(1, SeqCst);
}

fn claim_all() {
    let context = hart::at(hart_index()).plic_context();
    if let (Some((plic, _)), Some(context)) = (PLIC.try_get(), context) {
        plic.serve(context, |source| {
            let handler = HANDLERS.get(source as usize).and_then(Once::try_get);
            if let Some(handler) = handler {
                (handler.function)(handler.argument);
            }
        });
    }
}
