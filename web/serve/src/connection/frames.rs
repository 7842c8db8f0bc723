//! Observes the frames of an HTTP/2 client as they pass: `PRIORITY_UPDATE` (RFC 9218, section 7.1),
//! which the HTTP library drops, and the stream numbers, which it does not expose.
//!
//! Every byte is passed on. Memory is bounded: the head of the current frame, and the first
//! [`LONGEST`] bytes of a `PRIORITY_UPDATE`.
//!
//! To match requests with streams, the reader stops behind the header block of a new stream
//! until the library has handed out that request: see
//! [`ObservedIo`](super::observed::ObservedIo). It does so for clients that use the frame: those
//! that have sent one, or `SETTINGS_NO_RFC7540_PRIORITIES`.

/// Length of the client's connection preface; sent over TLS too.
const PREFACE: usize = 24;
const HEAD: usize = 9;

const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const CONTINUATION: u8 = 0x9;
const PRIORITY_UPDATE: u8 = 0x10;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// A PING frame on a stream, which is a PROTOCOL_ERROR.
const PROTOCOL_ERROR: &[u8] = b"\0\0\x08\x06\0\0\0\0\x01\0\0\0\0\0\0\0\0";
/// The head of an oversized frame, which is a FRAME_SIZE_ERROR.
const FRAME_SIZE_ERROR: &[u8] = b"\xff\xff\xff\x06\0\0\0\0\0";

/// Longest priority that is read, in bytes; a longer one contains nothing that is understood.
const LONGEST: usize = 4 + 64;
/// Number of requests that a client may cancel in excess of those that it does not cancel.
const RESETS: u64 = 200;

/// An event in the stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent<'a> {
    /// The header block of a new stream, complete.
    Opened(u32),
    /// The priority of a stream, which may not be open yet.
    Update(u32, &'a [u8]),
    /// Requests are cancelled as fast as they are made.
    Flood,
    /// An invalid update, which ends the connection: the library must receive this frame next,
    /// which it refuses with the right error.
    Wrong(&'static [u8]),
}

/// The position in the bytes that the client sends.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes of the preface that are still to come.
    preface: usize,
    head: [u8; HEAD],
    /// Bytes of the head that have arrived; all of them within a payload.
    had: usize,
    /// Bytes of the payload that are still to come.
    left: usize,
    /// First bytes of the payload, for frame types that are read.
    payload: Vec<u8>,
    /// New stream whose header block is arriving.
    opening: Option<u32>,
    highest: u32,
    follows: bool,
    opened: u64,
    resets: u64,
}

impl Frames {
    pub(crate) fn new() -> Frames {
        Frames {
            preface: PREFACE,
            head: [0; HEAD],
            had: 0,
            left: 0,
            payload: Vec::new(),
            opening: None,
            highest: 0,
            follows: false,
            opened: 0,
            resets: 0,
        }
    }

    /// Reads the next bytes and returns how many of them to pass on: all, or up to a stop.
    pub(crate) fn look(&mut self, data: &[u8], mut heard: impl FnMut(FrameEvent<'_>)) -> usize {
        let mut at = self.preface.min(data.len());
        self.preface -= at;
        while at < data.len() {
            if self.had < HEAD {
                let count = (HEAD - self.had).min(data.len() - at);
                self.head[self.had..][..count].copy_from_slice(&data[at..][..count]);
                self.had += count;
                at += count;
                if self.had < HEAD {
                    break;
                }
                self.begin();
            } else {
                let count = self.left.min(data.len() - at);
                self.keep(&data[at..][..count]);
                self.left -= count;
                at += count;
            }
            if self.left == 0 {
                self.had = 0;
                if self.end(&mut heard) {
                    break;
                }
            }
        }
        at
    }

    fn kind(&self) -> u8 {
        self.head[3]
    }

    fn flag(&self, flag: u8) -> bool {
        self.head[4] & flag != 0
    }

    fn stream(&self) -> u32 {
        number(&self.head[5..])
    }

    /// Handles a complete head.
    fn begin(&mut self) {
        let [a, b, c, ..] = self.head;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        self.payload.clear();
        if self.kind() == HEADERS {
            let id = self.stream();
            self.opening = (id > self.highest && id % 2 == 1).then_some(id);
        }
    }

    /// Saves a part of a payload.
    fn keep(&mut self, part: &[u8]) {
        match self.kind() {
            PRIORITY_UPDATE => {
                let room = (LONGEST + 1).saturating_sub(self.payload.len());
                self.payload
                    .extend_from_slice(&part[..part.len().min(room)]);
            }
            SETTINGS if !self.flag(ACK) => {
                for byte in part {
                    self.payload.push(*byte);
                    if let [a, b, c, d, e, f] = self.payload[..] {
                        self.follows |= u16::from_be_bytes([a, b]) == NO_RFC7540_PRIORITIES
                            && u32::from_be_bytes([c, d, e, f]) == 1;
                        self.payload.clear();
                    }
                }
            }
            _ => {}
        }
    }

    /// Handles a complete frame. Returns true to stop behind it.
    fn end(&mut self, heard: &mut impl FnMut(FrameEvent<'_>)) -> bool {
        match self.kind() {
            HEADERS | CONTINUATION if self.flag(END_HEADERS) => {
                let Some(id) = self.opening.take() else {
                    return false;
                };
                self.highest = id;
                self.opened += 1;
                if self.follows {
                    heard(FrameEvent::Opened(id));
                }
                self.follows
            }
            RST_STREAM => {
                self.resets += 1;
                // The library counts only requests that it has not handed out.
                if self.follows && 2 * self.resets > self.opened + RESETS {
                    heard(FrameEvent::Flood);
                }
                false
            }
            PRIORITY_UPDATE => {
                let (id, field) = match parts_of(self.stream(), &self.payload) {
                    Ok(update) => update,
                    Err(error) => {
                        heard(FrameEvent::Wrong(error));
                        return true;
                    }
                };
                if self.payload.len() <= LONGEST {
                    self.follows = true;
                    heard(FrameEvent::Update(id, field));
                }
                false
            }
            _ => false,
        }
    }
}

/// Returns the stream and the priority of an update.
///
/// # Errors
/// Returns the frame that causes the error of RFC 9218, section 7.1: an update belongs to the
/// connection and concerns a stream of the client.
fn parts_of(stream: u32, payload: &[u8]) -> Result<(u32, &[u8]), &'static [u8]> {
    let Some((id, field)) = payload.split_at_checked(4) else {
        return Err(FRAME_SIZE_ERROR);
    };
    // Even numbers are streams of the server, and this one opens none.
    match number(id) {
        id if stream == 0 && id % 2 == 1 => Ok((id, field)),
        _ => Err(PROTOCOL_ERROR),
    }
}

/// Reads a stream number of 31 bits.
fn number(bytes: &[u8]) -> u32 {
    let bytes = bytes.first_chunk().copied().unwrap_or_default();
    u32::from_be_bytes(bytes) & (u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend_from_slice(&[kind, flags]);
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    fn update(stream: u32, field: &str) -> Vec<u8> {
        let payload = [&stream.to_be_bytes()[..], field.as_bytes()].concat();
        frame(PRIORITY_UPDATE, 0, 0, &payload)
    }

    /// Returns the events in `bytes` behind a preface, read in parts of these sizes, and the
    /// positions of the stops behind requests.
    fn hear(bytes: &[u8], sizes: &[usize]) -> (Vec<String>, Vec<usize>) {
        let mut frames = Frames::new();
        let (mut events, mut stops) = (Vec::new(), Vec::new());
        let all = [&[0; PREFACE], bytes].concat();
        let (mut at, mut sizes) = (0, sizes.iter().cycle());
        while at < all.len() {
            let size = sizes.next().copied().unwrap_or(all.len());
            let part = &all[at..all.len().min(at + size)];
            let mut stops_here = false;
            let count = frames.look(part, |heard| {
                stops_here |= matches!(heard, FrameEvent::Opened(_));
                events.push(format!("{heard:?}"));
            });
            assert!((1..=part.len()).contains(&count), "{count}");
            assert!(frames.payload.len() <= LONGEST + 1);
            at += count;
            stops.extend(stops_here.then(|| at - PREFACE));
        }
        (events, stops)
    }

    /// Formats events as [`hear`] does.
    fn heard<const N: usize>(all: [FrameEvent<'_>; N]) -> Vec<String> {
        all.iter().map(|heard| format!("{heard:?}")).collect()
    }

    #[test]
    fn updates_are_heard_and_then_the_streams_of_their_client() {
        let first = frame(HEADERS, END_HEADERS, 1, b"block");
        let second = frame(HEADERS, 0, 3, b"bl");
        let rest = frame(CONTINUATION, END_HEADERS, 3, b"ock");
        let trailers = frame(HEADERS, END_HEADERS, 3, b"");
        let said = update(1, "u=0");
        let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
        let bytes = [&settings[..], &first, &said, &second, &rest, &trailers].concat();
        let opened = settings.len() + first.len() + said.len() + second.len() + rest.len();
        for sizes in [&[][..], &[1], &[3, 7], &[10]] {
            let (events, stops) = hear(&bytes, sizes);
            // The first stream was opened before the client had used the frame.
            let expected = heard([FrameEvent::Update(1, b"u=0"), FrameEvent::Opened(3)]);
            assert_eq!(events, expected, "{sizes:?}");
            assert_eq!(stops, [opened], "{sizes:?}");
        }
        let uses = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100, 0, 9, 0, 0, 0, 1]);
        let bytes = [uses, first].concat();
        assert_eq!(hear(&bytes, &[4]).0, heard([FrameEvent::Opened(1)]));
    }

    #[test]
    fn what_is_no_update_is_passed_over() {
        let long = "x".repeat(LONGEST);
        for bytes in [
            update(1, &long),
            frame(SETTINGS, ACK, 0, &[0, 9, 0, 0, 0, 1]),
        ] {
            assert_eq!(hear(&bytes, &[5]).0, heard([]));
        }
    }

    #[test]
    fn updates_that_are_forbidden_are_told_with_their_errors() {
        let long = "x".repeat(2 * LONGEST);
        for (bytes, error) in [
            (
                frame(PRIORITY_UPDATE, 0, 1, b"\0\0\0\x01u=0"),
                PROTOCOL_ERROR,
            ),
            (frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0"), FRAME_SIZE_ERROR),
            (frame(PRIORITY_UPDATE, 0, 0, b""), FRAME_SIZE_ERROR),
            (update(0, "u=0"), PROTOCOL_ERROR),
            (update(2, "u=0"), PROTOCOL_ERROR),
            (update(2, &long), PROTOCOL_ERROR),
        ] {
            let expected = heard([FrameEvent::Wrong(error)]);
            assert_eq!(hear(&bytes, &[]).0, expected, "{bytes:?}");
            assert_eq!(hear(&bytes, &[1]).0, expected, "{bytes:?}");
        }
    }

    #[test]
    fn requests_given_up_as_fast_as_they_are_made_are_a_flood() {
        let mut bytes = frame(SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 1]);
        for n in 0..RESETS as u32 {
            bytes.extend(frame(HEADERS, END_HEADERS, 2 * n + 1, b""));
            bytes.extend(frame(RST_STREAM, 0, 2 * n + 1, &[0; 4]));
        }
        let is_flood = |bytes: &[u8]| hear(bytes, &[]).0.contains(&heard([FrameEvent::Flood])[0]);
        assert!(!is_flood(&bytes));
        bytes.extend(frame(RST_STREAM, 0, 1, &[0; 4]));
        assert!(is_flood(&bytes));
    }

    /// Feeds the same bytes in all partitions: the events are the same, each byte is passed on
    /// once, and the saved bytes stay bounded.
    #[test]
    fn fuzz_frames() {
        let uses = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100, 0, 9, 0, 0, 0, 1]);
        let block = frame(HEADERS, END_HEADERS, 1, b"block");
        let parts = [
            frame(HEADERS, 0, 3, b"bl"),
            frame(CONTINUATION, END_HEADERS, 3, b"ock"),
        ]
        .concat();
        let reset = frame(RST_STREAM, 0, 1, &[0; 4]);
        let said = update(1, "u=1, i");
        let all = [&uses[..], &block, &block, &parts, &reset.repeat(300), &said].concat();
        let samples = [&uses[..], &block, &parts, &reset, &said, &all];
        let words = ["\0\0\x04\x10\0\0\0\0\0"];
        fuzz::fuzz("frames", &samples, &words, 2000, |bytes| {
            let heard = hear(bytes, &[]);
            assert_eq!(heard, hear(bytes, &[1, 7, 2, 30]));
            fuzz::way(heard.0.len())
        });
    }
}
