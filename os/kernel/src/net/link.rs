//! What frames go through: the card, if there is one, and back to ourselves.
//!
//! A frame for the machine itself, or that asks who has one of its addresses, comes back
//! through a queue of at most [`QUEUE`] frames: that is the loopback, which needs no card and
//! no time. While the queue or the card has no room nothing is sent, and the sockets wait.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::devices::{Card, Received};

/// Frames that are on their way back: as many as the card has buffers.
const QUEUE: usize = 16;
/// The longest frame.
const FRAME: usize = 1514;

/// See the module.
pub(super) struct Link {
    pub(super) card: Option<Card>,
    address: [u8; 6],
    back: VecDeque<Vec<u8>>,
    /// A frame that has been looked at, and goes back to the card.
    seen: Option<Received>,
    /// The other addresses of the machine.
    own: [u8; 4],
}

impl Link {
    pub(super) fn new(card: Option<Card>, own: [u8; 4]) -> Link {
        // Without a card: locally administered.
        let address = card.as_ref().map_or([2, 0, 0, 0, 0, 1], Card::address);
        let mut back = VecDeque::new();
        back.reserve(QUEUE);
        Link {
            card,
            address,
            back,
            seen: None,
            own,
        }
    }

    pub(super) fn address(&self) -> [u8; 6] {
        self.address
    }

    /// Is there no room to send? Then the card interrupts when there is.
    pub(super) fn is_full(&mut self) -> bool {
        self.card.as_mut().is_some_and(|card| !card.can_send())
    }

    fn tidy(&mut self) {
        if let (Some(card), Some(frame)) = (&mut self.card, self.seen.take()) {
            card.give_back(frame);
        }
    }
}

/// Is the frame for the machine itself?
fn is_own(frame: &[u8], address: [u8; 6], own: [u8; 4]) -> bool {
    const ARP: [u8; 2] = [8, 6];
    let is_own = |target: &[u8]| target.first() == Some(&127) || target == own;
    match frame.get(12..14) {
        Some(kind) if kind == ARP => frame.get(38..42).is_some_and(is_own),
        _ => frame.get(..6).is_some_and(|to| to == address),
    }
}

pub(super) enum Frame<'a> {
    Card(Received, &'a mut Option<Received>),
    Back(Vec<u8>),
}

impl RxToken for Frame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        match self {
            Frame::Card(frame, seen) => {
                let result = f(frame.bytes());
                *seen = Some(frame);
                result
            }
            Frame::Back(frame) => f(&frame),
        }
    }
}

pub(super) struct Room<'a> {
    card: Option<&'a mut Card>,
    back: &'a mut VecDeque<Vec<u8>>,
    address: [u8; 6],
    own: [u8; 4],
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = [0; FRAME];
        let frame = &mut bytes[..len.min(FRAME)];
        let result = f(frame);
        if is_own(frame, self.address, self.own) {
            let mut copy = Vec::new();
            // Without memory it is lost, as any frame may be.
            if copy.try_reserve_exact(frame.len()).is_ok() {
                copy.extend_from_slice(frame);
                self.back.push_back(copy);
            }
        } else if let Some(card) = self.card {
            // There is room.
            let _ = card.send(frame.len(), |to| to.copy_from_slice(frame));
        }
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Frame<'a>;
    type TxToken<'a> = Room<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = FRAME;
        capabilities.medium = Medium::Ethernet;
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(Frame<'_>, Room<'_>)> {
        self.tidy();
        let has_room = self.card.as_mut().is_none_or(Card::can_send) && self.back.len() <= QUEUE;
        if !has_room {
            return None;
        }
        let frame = match self.back.pop_front() {
            Some(frame) => Frame::Back(frame),
            None => Frame::Card(self.card.as_mut()?.receive()?, &mut self.seen),
        };
        let room = Room {
            card: self.card.as_mut(),
            back: &mut self.back,
            address: self.address,
            own: self.own,
        };
        Some((frame, room))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        self.tidy();
        let has_room = self.card.as_mut().is_none_or(Card::can_send) && self.back.len() < QUEUE;
        if !has_room {
            return None;
        }
        Some(Room {
            card: self.card.as_mut(),
            back: &mut self.back,
            address: self.address,
            own: self.own,
        })
    }
}
