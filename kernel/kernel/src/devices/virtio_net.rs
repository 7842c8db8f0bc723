//! Driver of a virtio network card, on `virtio-drivers`, in a legacy or a modern slot. No operation
//! spins.
//!
//! ```text
//!           post             (a frame)            receive           give_back
//!  buffer ────────► device ────────────► used ────────────► frame ───────────► posted again
//!
//!           send             (it is out)          reap
//!  buffer ────────► device ────────────► used ────────────► free
//! ```
//!
//! The number of buffers is fixed: [`QUEUE`] in each direction, of a page each. A sender without a
//! free buffer waits; the device drops frames for which no buffer is posted. A buffer belongs to
//! the device from its submission until the device has put it into its used ring (`memory/dma.rs`).

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::mmio::MmioTransport;

use super::virtio::{VirtioHal, transport};
use crate::machine::Device;
use crate::memory::PAGE;
use crate::memory::dma::{Dma, InDevice};

/// Maximum number of buffers in the device, in each direction. A power of two; a frame arrives
/// every 120 µs at 100 Mbit/s, so the buffers hold the frames that arrive while a more urgent poll
/// takes two milliseconds.
pub(crate) const QUEUE: usize = 16;

pub(crate) struct Card {
    raw: VirtIONetRaw<VirtioHal, MmioTransport<'static>, QUEUE>,
    /// Buffers that the device has, by its tokens.
    receiving: [Option<InDevice>; QUEUE],
    sending: [Option<InDevice>; QUEUE],
    /// Free buffers for sending.
    free: [Option<Dma>; QUEUE],
}

pub(crate) struct Received {
    buffer: Dma,
    start: usize,
    len: usize,
}

impl Received {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl Card {
    /// Creates the driver of the network card in a slot; `None` if the slot has no card, or there
    /// is no memory for its buffers.
    pub(crate) fn new(device: Device) -> Option<Card> {
        let transport = transport(device, DeviceType::Network)?;
        let mut card = Card {
            raw: VirtIONetRaw::new(transport).ok()?,
            receiving: [const { None }; QUEUE],
            sending: [const { None }; QUEUE],
            free: [const { None }; QUEUE],
        };
        for slot in &mut card.free {
            *slot = Some(Dma::new(PAGE).ok()?);
        }
        for _ in 0..QUEUE {
            card.post(Dma::new(PAGE).ok()?);
        }
        card.raw.enable_interrupts();
        Some(card)
    }

    pub(crate) fn address(&self) -> [u8; 6] {
        self.raw.mac_address()
    }

    fn post(&mut self, mut buffer: Dma) {
        // SAFETY: the buffer is lent below, so it belongs to the device until `receive` finds its
        // token in the used ring.
        let token = unsafe { self.raw.receive_begin(&mut buffer) };
        let submitted = buffer.lend();
        match token {
            Ok(token) => self.receiving[usize::from(token) % QUEUE] = Some(submitted),
            // The queue has space for all buffers. SAFETY: the buffer was not added to the queue.
            Err(_) => drop(unsafe { submitted.reclaim() }),
        }
    }

    /// Sets whether the card interrupts. With the event index, a feature of virtio, the card
    /// ignores the setting. A caller that enables interrupts polls once more after this call.
    pub(crate) fn set_interrupts(&mut self, is_enabled: bool) {
        if is_enabled {
            self.raw.enable_interrupts()
        } else {
            self.raw.disable_interrupts()
        }
    }

    pub(crate) fn has_received(&self) -> bool {
        fence(SeqCst);
        self.raw.poll_receive().is_some()
    }

    /// Returns a received frame, which the caller [gives back](Card::give_back).
    pub(crate) fn receive(&mut self) -> Option<Received> {
        fence(SeqCst);
        let token = self.raw.poll_receive()?;
        let submitted = self.receiving[usize::from(token) % QUEUE].take()?;
        // SAFETY: the device has put the token into its used ring, so it no longer uses the buffer.
        let mut buffer = unsafe { submitted.reclaim() };
        // SAFETY: this is the buffer that was added for the token.
        match unsafe { self.raw.receive_complete(token, &mut buffer) } {
            Ok((start, len)) if start + len <= buffer.len() => {
                Some(Received { buffer, start, len })
            }
            // The frame is shorter than its header, or longer than the buffer.
            _ => Some(Received {
                buffer,
                start: 0,
                len: 0,
            }),
        }
    }

    pub(crate) fn give_back(&mut self, frame: Received) {
        self.post(frame.buffer);
    }

    pub(crate) fn can_send(&mut self) -> bool {
        if !self.has_free() {
            self.reap_sent();
        }
        self.has_free()
    }

    fn has_free(&self) -> bool {
        self.raw.can_send() && self.free.iter().any(Option::is_some)
    }

    fn reap_sent(&mut self) {
        fence(SeqCst);
        while let Some(token) = self.raw.poll_transmit() {
            let Some(submitted) = self.sending[usize::from(token) % QUEUE].take() else {
                break;
            };
            // SAFETY: the device has put the token into its used ring, so it no longer uses the
            // buffer.
            let buffer = unsafe { submitted.reclaim() };
            // SAFETY: this is the buffer that was added for the token.
            let _ = unsafe { self.raw.transmit_complete(token, &buffer) };
            if let Some(slot) = self.free.iter_mut().find(|slot| slot.is_none()) {
                *slot = Some(buffer);
            }
            fence(SeqCst);
        }
    }

    /// Sends a frame of `len` bytes that `fill` writes; `None` if no buffer is free.
    pub(crate) fn send<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut buffer = self.free.iter_mut().find_map(Option::take)?;
        let Ok(start) = self.raw.fill_buffer_header(&mut buffer) else {
            return None;
        };
        let end = (start + len).min(buffer.len());
        let result = fill(&mut buffer[start..end]);
        // SAFETY: the buffer is lent below, so it belongs to the device until `reap_sent` finds its
        // token in the used ring.
        let token = unsafe { self.raw.transmit_begin(&buffer[..end]) };
        let submitted = buffer.lend();
        match token {
            Ok(token) => self.sending[usize::from(token) % QUEUE] = Some(submitted),
            Err(_) => {
                // SAFETY: the buffer was not added to the queue.
                let buffer = unsafe { submitted.reclaim() };
                if let Some(slot) = self.free.iter_mut().find(|slot| slot.is_none()) {
                    *slot = Some(buffer);
                }
            }
        }
        Some(result)
    }
}
