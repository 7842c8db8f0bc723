//! The link layer: the card, if the machine has one, and the loopback.
//!
//! A frame for the machine itself, and a query for an address of the machine, is returned through a
//! queue of at most [`QUEUE`] frames. This is the loopback, which needs no card and takes no time.
//! While the queue or the card is full, no frame is sent, and the sockets wait.
//!
//! `smoltcp` exchanges frames through a [`Port`], one frame at a time. It writes each frame into a
//! loopback buffer; a frame for the card is copied from there, and gets its checksums
//! ([`checksum`]).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::IpAddress;
use upshift_core::Level;

use super::checksum;
use crate::devices::{Card, Received};
use crate::levels::WaiterLevels;

/// Maximum number of loopback frames: as many as the card has buffers.
const QUEUE: usize = 16;
/// Number of loopback buffers: one for each frame in the queue, one for the frame that is being
/// handled, and one for its answer.
const BUFFERS: usize = QUEUE + 2;
/// Maximum length of a frame, in bytes.
pub(super) const FRAME: usize = 1514;
/// Number of bytes before a frame in its buffer: they align the payload after headers of 14, 20 and
/// 20 bytes, so that it is copied in words.
const PADDING: usize = 2;

pub(super) struct Link {
    pub(super) card: Option<Card>,
    /// True while the receiver polls the card, so that the card need not interrupt.
    is_polled: bool,
    address: [u8; 6],
    /// Loopback frames, with the levels of their senders.
    loopback: VecDeque<(LoopbackBuffer, Level)>,
    levels: WaiterLevels,
    /// Free buffers; there are [`BUFFERS`] in total.
    free: Vec<LoopbackBuffer>,
    /// Set by tests: the card interrupts for each frame, so that the cost can be counted.
    #[cfg(feature = "selftest")]
    pub(super) is_never_polled: bool,
    /// Source port whose last loopback frame is kept, and this frame, for tests.
    #[cfg(feature = "selftest")]
    pub(super) tap: Option<(u16, Vec<u8>)>,
    /// The address of the machine besides 127.0.0.0/8.
    own_address: Option<[u8; 4]>,
    /// Number of received frames that were longer than [`FRAME`].
    too_long: u64,
}

/// Buffer of a frame that the machine sends.
pub(super) struct LoopbackBuffer {
    bytes: Box<[u8]>,
    len: usize,
}

impl LoopbackBuffer {
    fn new(len: usize) -> LoopbackBuffer {
        let bytes = alloc::vec![0; PADDING + len].into_boxed_slice();
        LoopbackBuffer { bytes, len }
    }

    fn frame(&self) -> &[u8] {
        &self.bytes[PADDING..][..self.len]
    }

    fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[PADDING..][..self.len]
    }
}

pub(super) enum Frame {
    Card(Received),
    Loopback(LoopbackBuffer, Level),
}

impl Frame {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Frame::Card(frame) => frame.bytes(),
            Frame::Loopback(frame, _) => frame.frame(),
        }
    }

    /// Returns the level of the frame, if it is known.
    pub(super) fn level(&self) -> Option<Level> {
        match self {
            Frame::Card(_) => None,
            Frame::Loopback(_, level) => Some(*level),
        }
    }
}

impl Link {
    pub(super) fn new(card: Option<Card>) -> Link {
        // Without a card the address is locally administered.
        let address = card.as_ref().map_or([2, 0, 0, 0, 0, 1], Card::address);
        let mut loopback = VecDeque::new();
        loopback.reserve(QUEUE + 1);
        Link {
            card,
            is_polled: false,
            address,
            loopback,
            levels: WaiterLevels::new(),
            free: (0..BUFFERS).map(|_| LoopbackBuffer::new(FRAME)).collect(),
            #[cfg(feature = "selftest")]
            is_never_polled: false,
            #[cfg(feature = "selftest")]
            tap: None,
            own_address: None,
            too_long: 0,
        }
    }

    pub(super) fn address(&self) -> [u8; 6] {
        self.address
    }

    pub(super) fn set_own_address(&mut self, own: Option<[u8; 4]>) {
        self.own_address = own;
    }

    pub(super) fn is_own(&self, address: IpAddress) -> bool {
        let IpAddress::Ipv4(address) = address;
        address.is_loopback() || self.own_address == Some(address.octets())
    }

    /// Returns whether there is no space for another frame. The card interrupts when it has space;
    /// a loopback frame that is taken also frees space.
    pub(super) fn is_full(&mut self) -> bool {
        self.loopback.len() >= QUEUE || !self.card_has_room()
    }

    fn card_has_room(&mut self) -> bool {
        self.card.as_mut().is_none_or(Card::can_send)
    }

    pub(super) fn levels(&self) -> u64 {
        self.levels.bits()
    }

    /// Returns the next incoming frame, or `None` if there is no frame, or no space for an answer.
    pub(super) fn take(&mut self) -> Option<Frame> {
        if !self.card_has_room() {
            return None;
        }
        match self.loopback.pop_front() {
            Some((frame, level)) => {
                self.levels.move_waiter(Some(level), None);
                Some(Frame::Loopback(frame, level))
            }
            None => Some(Frame::Card(self.card.as_mut()?.receive()?)),
        }
    }

    pub(super) fn start_polling(&mut self) {
        #[cfg(feature = "selftest")]
        if self.is_never_polled {
            return;
        }
        if !self.is_polled
            && let Some(card) = &mut self.card
        {
            card.set_interrupts(false);
            self.is_polled = true;
        }
    }

    /// Enables the interrupts of the card again. Returns true if the card has more frames, for
    /// which it would not interrupt.
    pub(super) fn stop_polling(&mut self) -> bool {
        let Some(card) = &mut self.card else {
            return false;
        };
        if self.is_polled {
            card.set_interrupts(true);
            self.is_polled = false;
        }
        card.has_received() && card.can_send()
    }

    /// Removes the card, or restores it.
    #[cfg(feature = "selftest")]
    pub(super) fn exchange_card(&mut self, card: Option<Card>) -> Option<Card> {
        let _ = self.stop_polling();
        core::mem::replace(&mut self.card, card)
    }

    pub(super) fn give_back(&mut self, frame: Frame) {
        match (frame, &mut self.card) {
            (Frame::Card(frame), Some(card)) => card.give_back(frame),
            // A frame that a test has injected has its own buffer.
            (Frame::Loopback(frame, _), _)
                if frame.bytes.len() == PADDING + FRAME && self.free.len() < BUFFERS =>
            {
                self.free.push(frame);
            }
            _ => {}
        }
    }

    /// Returns a port for `smoltcp`, which receives `frame`, if any, and sends frames at `level`.
    pub(super) fn port<'a>(&'a mut self, frame: Option<&'a [u8]>, level: Level) -> Port<'a> {
        Port {
            frame,
            link: self,
            level,
        }
    }

    /// Returns whether a frame from the card claims an address of the machine. Such a frame could
    /// make `smoltcp` map 127.0.0.1 to another machine.
    pub(super) fn is_spoofed(&self, frame: &Frame) -> bool {
        matches!(frame, Frame::Card(_)) && claims_own_address(frame.bytes(), self.own_address)
    }

    pub(super) fn is_damaged(&self, frame: &Frame) -> bool {
        matches!(frame, Frame::Card(_)) && !checksum::is_valid(frame.bytes())
    }

    /// Returns whether a frame is longer than the medium permits, and counts such a frame, which
    /// the caller drops. A buffer of the card holds 4,084 bytes; the device itself drops longer
    /// frames.
    pub(super) fn is_too_long(&mut self, frame: &Frame) -> bool {
        let is_too_long = frame.bytes().len() > FRAME;
        self.too_long += u64::from(is_too_long);
        is_too_long
    }

    pub(super) fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Injects a frame as if it had been received.
    #[cfg(feature = "selftest")]
    pub(super) fn inject(&mut self, frame: &[u8]) -> bool {
        if self.loopback.len() >= QUEUE {
            return false;
        }
        if checksum::is_valid(frame) {
            let mut buffer = LoopbackBuffer::new(frame.len());
            buffer.frame_mut().copy_from_slice(frame);
            self.push_loopback(buffer, crate::executor::LEAST_URGENT_WORK);
        }
        true
    }

    fn push_loopback(&mut self, frame: LoopbackBuffer, level: Level) {
        self.loopback.push_back((frame, level));
        self.levels.move_waiter(None, Some(level));
    }
}

/// Returns whether a frame is for the machine itself, or is an ARP query for one of its addresses.
fn is_for_self(frame: &[u8], address: [u8; 6], own: Option<[u8; 4]>) -> bool {
    const ARP: [u8; 2] = [8, 6];
    let is_own =
        |target: &[u8]| target.first() == Some(&127) || own.is_some_and(|own| target == own);
    match frame.get(12..14) {
        Some(kind) if kind == ARP => frame.get(38..42).is_some_and(is_own),
        _ => frame.get(..6).is_some_and(|to| to == address),
    }
}

/// Returns whether a frame comes from an address of the machine, or goes to 127.0.0.0/8.
pub(super) fn claims_own_address(frame: &[u8], own: Option<[u8; 4]>) -> bool {
    let (from, to) = match frame.get(12..14) {
        Some([8, 6]) => (frame.get(28..32), None),
        Some([8, 0]) => (frame.get(26..30), frame.get(30..34)),
        _ => return false,
    };
    let is_loopback = |address: Option<&[u8]>| address.is_some_and(|address| address[0] == 127);
    let is_own = own.is_some_and(|own| from == Some(&own[..]));
    is_own || is_loopback(from) || is_loopback(to)
}

/// A device of one frame for `smoltcp`. See [`Link::port`].
pub(super) struct Port<'a> {
    frame: Option<&'a [u8]>,
    link: &'a mut Link,
    level: Level,
}

pub(super) struct RxFrame<'a>(&'a [u8]);

impl RxToken for RxFrame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct TxFrame<'a> {
    link: &'a mut Link,
    level: Level,
}

impl TxToken for TxFrame<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let link = self.link;
        let len = len.min(FRAME);
        let Some(mut buffer) = link.free.pop() else {
            // The frame is lost, as any frame may be.
            return f(&mut [0; FRAME][..len]);
        };
        buffer.len = len;
        let result = f(buffer.frame_mut());
        if is_for_self(buffer.frame(), link.address, link.own_address) {
            #[cfg(feature = "selftest")]
            if let Some((port, last)) = &mut link.tap
                && buffer.frame().get(34..36) == Some(&port.to_be_bytes())
            {
                checksum::fill(buffer.frame_mut());
                *last = buffer.frame().into();
            }
            link.push_loopback(buffer, self.level);
            return result;
        }
        if let Some(card) = &mut link.card {
            checksum::fill(buffer.frame_mut());
            // The caller has checked that there is space.
            let _ = card.send(len, |to| to.copy_from_slice(buffer.frame()));
        }
        link.free.push(buffer);
        result
    }
}

impl Device for Port<'_> {
    type RxToken<'a>
        = RxFrame<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = TxFrame<'a>
    where
        Self: 'a;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = FRAME;
        capabilities.medium = Medium::Ethernet;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }

    /// Takes the frame, together with space for an answer.
    fn receive(&mut self, _: Instant) -> Option<(RxFrame<'_>, TxFrame<'_>)> {
        let frame = self.frame.take()?;
        let out = TxFrame {
            link: self.link,
            level: self.level,
        };
        Some((RxFrame(frame), out))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxFrame<'_>> {
        if self.link.is_full() {
            return None;
        }
        Some(TxFrame {
            link: self.link,
            level: self.level,
        })
    }
}
