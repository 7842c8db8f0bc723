//! What frames go through: the card, if there is one, and back to ourselves.
//!
//! A frame for the machine itself, or that asks who has one of its addresses, comes back
//! through a queue of at most [`QUEUE`] frames: that is the loopback, which needs no card and
//! no time. While the queue or the card has no room nothing is sent, and the sockets wait.
//!
//! `smoltcp` takes frames from, and gives them to, a [`Port`]: of one frame at a time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use upshift_core::Level;

use crate::devices::{Card, Received};

/// Frames that are on their way back: as many as the card has buffers.
const QUEUE: usize = 16;
/// The longest frame.
pub(super) const FRAME: usize = 1514;

/// See the module.
pub(super) struct Link {
    pub(super) card: Option<Card>,
    /// The receiver takes what the card brings, so that need not interrupt.
    is_attended: bool,
    address: [u8; 6],
    /// Frames on their way back, with the levels of what has sent them.
    back: VecDeque<(Vec<u8>, Level)>,
    /// The last frame that went back from a port, for the tests.
    #[cfg(feature = "selftest")]
    pub(super) tap: Option<(u16, Vec<u8>)>,
    /// The address of the machine besides 127.0.0.0/8.
    own: Option<[u8; 4]>,
    /// Frames that were longer than [`FRAME`].
    too_long: u64,
}

/// A frame that has come in.
pub(super) enum Frame {
    Card(Received),
    /// From ourselves, of this level.
    Back(Vec<u8>, Level),
}

impl Frame {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Frame::Card(frame) => frame.bytes(),
            Frame::Back(frame, _) => frame,
        }
    }

    /// How urgent it is, if it is known.
    pub(super) fn level(&self) -> Option<Level> {
        match self {
            Frame::Card(_) => None,
            Frame::Back(_, level) => Some(*level),
        }
    }
}

impl Link {
    pub(super) fn new(card: Option<Card>) -> Link {
        // Without a card: locally administered.
        let address = card.as_ref().map_or([2, 0, 0, 0, 0, 1], Card::address);
        let mut back = VecDeque::new();
        back.reserve(QUEUE + 1);
        Link {
            card,
            is_attended: false,
            address,
            back,
            #[cfg(feature = "selftest")]
            tap: None,
            own: None,
            too_long: 0,
        }
    }

    pub(super) fn address(&self) -> [u8; 6] {
        self.address
    }

    pub(super) fn set_own(&mut self, own: Option<[u8; 4]>) {
        self.own = own;
    }

    /// Is there no room to send? The card interrupts when there is; a frame that is taken
    /// makes room among those that come back.
    pub(super) fn is_full(&mut self) -> bool {
        self.back.len() >= QUEUE || !self.card_has_room()
    }

    fn card_has_room(&mut self) -> bool {
        self.card.as_mut().is_none_or(Card::can_send)
    }

    /// The most urgent level of what is on its way back.
    pub(super) fn level(&self) -> Option<Level> {
        self.back.iter().map(|(_, level)| *level).min()
    }

    /// The next frame that has come in. `None`: there is none, or no room for an answer.
    pub(super) fn take(&mut self) -> Option<Frame> {
        if !self.card_has_room() {
            return None;
        }
        match self.back.pop_front() {
            Some((frame, level)) => Some(Frame::Back(frame, level)),
            None => Some(Frame::Card(self.card.as_mut()?.receive()?)),
        }
    }

    /// The receiver begins to take frames.
    pub(super) fn attend(&mut self) {
        if !self.is_attended
            && let Some(card) = &mut self.card
        {
            card.set_interrupts(false);
            self.is_attended = true;
        }
    }

    /// The receiver goes to sleep. True: not yet, for there is more, which would not interrupt.
    pub(super) fn leave(&mut self) -> bool {
        let Some(card) = &mut self.card else {
            return false;
        };
        if self.is_attended {
            card.set_interrupts(true);
            self.is_attended = false;
        }
        card.has_received() && card.can_send()
    }

    /// Takes the card away, or gives one back.
    #[cfg(feature = "selftest")]
    pub(super) fn exchange_card(&mut self, card: Option<Card>) -> Option<Card> {
        let _ = self.leave();
        core::mem::replace(&mut self.card, card)
    }

    /// The frame is not needed any more.
    pub(super) fn give_back(&mut self, frame: Frame) {
        if let (Some(card), Frame::Card(frame)) = (&mut self.card, frame) {
            card.give_back(frame);
        }
    }

    /// What `smoltcp` is given: this frame, if any, and the way out, for what is of a level.
    pub(super) fn port<'a>(&'a mut self, frame: Option<&'a [u8]>, level: Level) -> Port<'a> {
        Port {
            frame,
            link: self,
            level,
        }
    }

    /// Does a frame that the card has brought speak for the machine itself? One that does would
    /// tell `smoltcp`, say, that somebody else has 127.0.0.1.
    pub(super) fn is_lie(&self, frame: &Frame) -> bool {
        matches!(frame, Frame::Card(_)) && speaks_for(frame.bytes(), self.own)
    }

    /// Is a frame longer than the medium has them? It is counted, and to be dropped: a buffer of the
    /// card holds 4,084 bytes, what is longer still the device drops.
    pub(super) fn is_too_long(&mut self, frame: &Frame) -> bool {
        let is_too_long = frame.bytes().len() > FRAME;
        self.too_long += u64::from(is_too_long);
        is_too_long
    }

    /// How many frames were too long.
    pub(super) fn too_long(&self) -> u64 {
        self.too_long
    }

    /// Puts a frame in as if it had come in.
    #[cfg(feature = "selftest")]
    pub(super) fn inject(&mut self, frame: &[u8]) -> bool {
        if self.back.len() >= QUEUE {
            return false;
        }
        let level = crate::executor::LEAST_URGENT_WORK;
        self.back.push_back((frame.into(), level));
        true
    }
}

/// Is the frame for the machine itself?
fn is_own(frame: &[u8], address: [u8; 6], own: Option<[u8; 4]>) -> bool {
    const ARP: [u8; 2] = [8, 6];
    let is_own =
        |target: &[u8]| target.first() == Some(&127) || own.is_some_and(|own| target == own);
    match frame.get(12..14) {
        Some(kind) if kind == ARP => frame.get(38..42).is_some_and(is_own),
        _ => frame.get(..6).is_some_and(|to| to == address),
    }
}

/// Does a frame come from an address of the machine, or go to one that is in no network?
pub(super) fn speaks_for(frame: &[u8], own: Option<[u8; 4]>) -> bool {
    let (from, to) = match frame.get(12..14) {
        Some([8, 6]) => (frame.get(28..32), None),
        Some([8, 0]) => (frame.get(26..30), frame.get(30..34)),
        _ => return false,
    };
    let is_loopback = |address: Option<&[u8]>| address.is_some_and(|address| address[0] == 127);
    let is_own = own.is_some_and(|own| from == Some(&own[..]));
    is_own || is_loopback(from) || is_loopback(to)
}

/// See [`Link::port`].
pub(super) struct Port<'a> {
    frame: Option<&'a [u8]>,
    link: &'a mut Link,
    level: Level,
}

pub(super) struct In<'a>(&'a [u8]);

impl RxToken for In<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Out<'a> {
    link: &'a mut Link,
    level: Level,
}

impl TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = [0; FRAME];
        let frame = &mut bytes[..len.min(FRAME)];
        let result = f(frame);
        let link = self.link;
        if is_own(frame, link.address, link.own) {
            let mut copy = Vec::new();
            // Without memory it is lost, as any frame may be.
            if copy.try_reserve_exact(frame.len()).is_ok() {
                copy.extend_from_slice(frame);
                #[cfg(feature = "selftest")]
                if let Some((port, last)) = &mut link.tap
                    && copy.get(34..36) == Some(&port.to_be_bytes())
                {
                    last.clone_from(&copy);
                }
                link.back.push_back((copy, self.level));
            }
        } else if let Some(card) = &mut link.card {
            // There is room.
            let _ = card.send(frame.len(), |to| to.copy_from_slice(frame));
        }
        result
    }
}

impl Device for Port<'_> {
    type RxToken<'a>
        = In<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Out<'a>
    where
        Self: 'a;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = FRAME;
        capabilities.medium = Medium::Ethernet;
        capabilities
    }

    /// Whoever took the frame has seen to there being room for an answer.
    fn receive(&mut self, _: Instant) -> Option<(In<'_>, Out<'_>)> {
        let frame = self.frame.take()?;
        let out = Out {
            link: self.link,
            level: self.level,
        };
        Some((In(frame), out))
    }

    fn transmit(&mut self, _: Instant) -> Option<Out<'_>> {
        if self.link.is_full() {
            return None;
        }
        Some(Out {
            link: self.link,
            level: self.level,
        })
    }
}
