//! A virtio network card, by `virtio-drivers`, in a legacy or a modern slot. Nothing spins.
//!
//! ```text
//!           offer            (a frame)            receive           given back
//!  buffer ────────► device ────────────► used ────────────► frame ───────────► offered again
//!
//!           send             (it is out)          reap
//!  buffer ────────► device ────────────► used ────────────► free
//! ```
//!
//! [`QUEUE`] buffers of a page each way are all there ever are: without a free one to send
//! with, whatever sends waits; frames for which none is offered are dropped by the device. A
//! buffer belongs to the device from the call that tells it of it until that has put it into
//! its used ring (`memory/dma.rs`).

use core::ptr::NonNull;

use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr as BusAddr};

use crate::arch::Register;
use crate::machine::{Device, Kind};
use crate::memory::dma::{Dma, InDevice};
use crate::memory::{PAGE, PhysAddr};

/// Buffers that the device has at most, each way. A power of two; a frame arrives every 120 µs
/// at 100 Mbit/s, so they hold what comes while a more urgent poll takes two milliseconds.
pub(crate) const QUEUE: usize = 16;

/// Registers of a virtio slot (virtio 1.2, 4.2.2).
const INTERRUPT_STATUS: usize = 0x60;
const INTERRUPT_ACK: usize = 0x64;

/// What the driver asks of the kernel.
struct Memory;

// SAFETY: frames are zeroed, aligned, contiguous, mapped at a fixed distance, and given once;
// registers are mapped likewise.
unsafe impl Hal for Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (BusAddr, NonNull<u8>) {
        match Dma::new(pages * PAGE) {
            Ok(dma) => {
                // The driver gives it back when the device has forgotten it.
                let start = dma.lend().address();
                let seen = NonNull::new(start.direct() as *mut u8);
                (start.get() as BusAddr, seen.unwrap_or(NonNull::dangling()))
            }
            // What the driver takes for a failure.
            Err(_) => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(start: BusAddr, _: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: the driver gives back what it got, with as many pages.
        drop(unsafe { InDevice::again(PhysAddr::new(start as usize), pages * PAGE).back() });
        0
    }

    unsafe fn mmio_phys_to_virt(start: BusAddr, _: usize) -> NonNull<u8> {
        let seen = PhysAddr::new(start as usize).direct() as *mut u8;
        NonNull::new(seen).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> BusAddr {
        // Buffers are frames, which the kernel sees at a fixed distance.
        PhysAddr::of_image(buffer.cast::<u8>().as_ptr().addr()).get() as BusAddr
    }

    unsafe fn unshare(_: BusAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// The registers by which a slot says why it interrupts.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    status: Register<u32>,
    acknowledge: Register<u32>,
}

impl Line {
    /// `None` if the device is no virtio slot.
    pub(crate) fn of(device: Device) -> Option<Line> {
        if device.kind() != Kind::Virtio {
            return None;
        }
        let register = |offset| {
            let address = PhysAddr::new(device.base().get() + offset);
            // SAFETY: the device tree says that it is a virtio slot; these two registers of
            // one make it access nothing.
            unsafe { Register::new(address) }
        };
        Some(Line {
            status: register(INTERRUPT_STATUS)?,
            acknowledge: register(INTERRUPT_ACK)?,
        })
    }

    /// The interrupt is seen to. For the handler, whatever else is done with the card.
    pub(crate) fn acknowledge(self) {
        self.acknowledge.write(self.status.read());
    }
}

/// The card.
pub(crate) struct Card {
    raw: VirtIONetRaw<Memory, MmioTransport<'static>, QUEUE>,
    /// Buffers that the device has, by its tokens.
    receiving: [Option<InDevice>; QUEUE],
    sending: [Option<InDevice>; QUEUE],
    /// Those that nothing is sent with.
    free: [Option<Dma>; QUEUE],
}

/// A frame that has come in.
pub(crate) struct Received {
    buffer: Dma,
    start: usize,
    len: usize,
}

impl Received {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl Card {
    /// The network card in a slot. `None`: there is none, or no memory for its buffers.
    pub(crate) fn new(device: Device) -> Option<Card> {
        if device.kind() != Kind::Virtio {
            return None;
        }
        let header = NonNull::new(device.base().direct() as *mut _)?;
        // SAFETY: the device tree says that there is a virtio slot of this size; it is mapped
        // for good, and nothing else uses it but `Line`, for registers of its own.
        let transport = unsafe { MmioTransport::new(header, device.size()) }.ok()?;
        if transport.device_type() != DeviceType::Network {
            return None;
        }
        let mut card = Card {
            raw: VirtIONetRaw::new(transport).ok()?,
            receiving: [const { None }; QUEUE],
            sending: [const { None }; QUEUE],
            free: [const { None }; QUEUE],
        };
        for place in &mut card.free {
            *place = Some(Dma::new(PAGE).ok()?);
        }
        for _ in 0..QUEUE {
            card.offer(Dma::new(PAGE).ok()?);
        }
        card.raw.enable_interrupts();
        Some(card)
    }

    /// Its address.
    pub(crate) fn address(&self) -> [u8; 6] {
        self.raw.mac_address()
    }

    /// Lets the device receive a frame into a buffer.
    fn offer(&mut self, mut buffer: Dma) {
        // SAFETY: the buffer is the device's until `receive` finds it used.
        let token = unsafe { self.raw.receive_begin(&mut buffer) };
        let lent = buffer.lend();
        match token {
            Ok(token) => self.receiving[usize::from(token) % QUEUE] = Some(lent),
            // There are as many places as buffers.
            // SAFETY: the device has not been told of it.
            Err(_) => drop(unsafe { lent.back() }),
        }
    }

    /// A frame that has come in. It is to be [given back](Card::give_back).
    pub(crate) fn receive(&mut self) -> Option<Received> {
        let token = self.raw.poll_receive()?;
        let lent = self.receiving[usize::from(token) % QUEUE].take()?;
        // SAFETY: the device has put it into its used ring.
        let mut buffer = unsafe { lent.back() };
        // SAFETY: the buffer of this token.
        match unsafe { self.raw.receive_complete(token, &mut buffer) } {
            Ok((start, len)) if start + len <= buffer.len() => {
                Some(Received { buffer, start, len })
            }
            // Shorter than its header, or longer than there is room for.
            _ => Some(Received {
                buffer,
                start: 0,
                len: 0,
            }),
        }
    }

    /// The frame is not needed any more.
    pub(crate) fn give_back(&mut self, frame: Received) {
        self.offer(frame.buffer);
    }

    /// Takes back what has been sent. True: there is a buffer to send with.
    pub(crate) fn can_send(&mut self) -> bool {
        while let Some(token) = self.raw.poll_transmit() {
            let Some(lent) = self.sending[usize::from(token) % QUEUE].take() else {
                break;
            };
            // SAFETY: the device has put it into its used ring.
            let buffer = unsafe { lent.back() };
            // SAFETY: the buffer of this token.
            let _ = unsafe { self.raw.transmit_complete(token, &buffer) };
            if let Some(place) = self.free.iter_mut().find(|place| place.is_none()) {
                *place = Some(buffer);
            }
        }
        self.free.iter().any(Option::is_some) && self.raw.can_send()
    }

    /// Sends a frame of `len` bytes that `fill` writes. `None`: there is no buffer for it.
    pub(crate) fn send<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut buffer = self.free.iter_mut().find_map(Option::take)?;
        let Ok(start) = self.raw.fill_buffer_header(&mut buffer) else {
            return None;
        };
        let end = (start + len).min(buffer.len());
        let result = fill(&mut buffer[start..end]);
        // SAFETY: the buffer is the device's until `can_send` finds it used.
        let token = unsafe { self.raw.transmit_begin(&buffer[..end]) };
        let lent = buffer.lend();
        match token {
            Ok(token) => self.sending[usize::from(token) % QUEUE] = Some(lent),
            Err(_) => {
                // SAFETY: the device has not been told of it.
                let buffer = unsafe { lent.back() };
                if let Some(place) = self.free.iter_mut().find(|place| place.is_none()) {
                    *place = Some(buffer);
                }
            }
        }
        Some(result)
    }
}
