//! Scans the frames of an HTTP/2 client. It extracts `PRIORITY_UPDATE` (RFC 9218, section 7.1),
//! which hyper drops, and the stream numbers (the stream identifiers of RFC 9113), which hyper does
//! not expose.
//!
//! The scanner changes no byte and drops none. Memory is bounded, because the scanner keeps only
//! the head of the current frame (the nine bytes before its payload), and little more than
//! [`MAX_UPDATE_BYTES`] bytes of a `PRIORITY_UPDATE`.
//!
//! So that requests can be matched with streams, the connection is not read beyond the header block
//! of a new stream until hyper has handed out the stream's request (see
//! [`ObservedIo`](super::observed::ObservedIo)). Reading stops only for clients that have sent a
//! `PRIORITY_UPDATE` or announced it by `SETTINGS_NO_RFC7540_PRIORITIES`.

/// Length of the client's connection preface; sent over TLS too.
const PREFACE_BYTES: usize = 24;
/// Length of the head of a frame.
const HEAD_BYTES: usize = 9;

const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
const CONTINUATION: u8 = 0x9;
const PRIORITY_UPDATE: u8 = 0x10;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// A frame that hyper answers with PROTOCOL_ERROR: a PING on a stream.
const PROTOCOL_ERROR: &[u8] = b"\0\0\x08\x06\0\0\0\0\x01\0\0\0\0\0\0\0\0";
/// The head of a frame that hyper answers with FRAME_SIZE_ERROR, because the frame is too long.
const FRAME_SIZE_ERROR: &[u8] = b"\xff\xff\xff\x06\0\0\0\0\0";

/// Longest payload of a `PRIORITY_UPDATE` that is read, in bytes: a stream number and 64 bytes of
/// the field. Longer updates are ignored.
const MAX_UPDATE_BYTES: usize = 4 + 64;
/// Number by which the cancelled requests of a client may exceed its other requests.
const MAX_EXCESS_RESETS: u64 = 200;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent<'a> {
    /// The header block of a new stream is complete. Reported only for clients that have used or
    /// announced `PRIORITY_UPDATE`.
    Opened(u32),
    /// The priority of a stream, which may not be open yet.
    Update(u32, &'a [u8]),
    /// The client has cancelled too many of its requests (see [`MAX_EXCESS_RESETS`]).
    Flood,
    /// An invalid update, which ends the connection. Contains the invalid frame that hyper must
    /// receive next, so that hyper ends the connection with the right error.
    Invalid(&'static [u8]),
}

#[derive(Debug)]
pub(crate) struct FrameScanner {
    preface_left: usize,
    head: [u8; HEAD_BYTES],
    /// Number of bytes of the head that have arrived; within a payload, the length of the head.
    head_len: usize,
    payload_left: usize,
    /// Payload of a frame that is read: the beginning of an update, or the current setting.
    payload: Vec<u8>,
    /// New stream whose header block has begun.
    opening: Option<u32>,
    highest_stream: u32,
    /// Set once the client has used `PRIORITY_UPDATE` or announced it.
    tracks_streams: bool,
    /// Number of streams that the client has opened.
    opened: u64,
    resets: u64,
}

impl FrameScanner {
    pub(crate) fn new() -> FrameScanner {
        FrameScanner {
            preface_left: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_len: 0,
            payload_left: 0,
            payload: Vec::new(),
            opening: None,
            highest_stream: 0,
            tracks_streams: false,
            opened: 0,
            resets: 0,
        }
    }

    /// Scans the next bytes and returns the number of bytes to pass on: all bytes, or the bytes
    /// before the position at which reading must stop.
    pub(crate) fn scan(&mut self, data: &[u8], mut on_event: impl FnMut(FrameEvent<'_>)) -> usize {
        let mut position = self.preface_left.min(data.len());
        self.preface_left -= position;
        while position < data.len() {
            if self.head_len < HEAD_BYTES {
                let count = (HEAD_BYTES - self.head_len).min(data.len() - position);
                self.head[self.head_len..][..count].copy_from_slice(&data[position..][..count]);
                self.head_len += count;
                position += count;
                if self.head_len < HEAD_BYTES {
                    break;
                }
                self.on_head();
            } else {
                let count = self.payload_left.min(data.len() - position);
                self.save_payload(&data[position..][..count]);
                self.payload_left -= count;
                position += count;
            }
            if self.payload_left == 0 {
                self.head_len = 0;
                if self.on_frame(&mut on_event) {
                    break;
                }
            }
        }
        position
    }

    fn kind(&self) -> u8 {
        self.head[3]
    }

    fn flag(&self, flag: u8) -> bool {
        self.head[4] & flag != 0
    }

    fn stream(&self) -> u32 {
        stream_number(&self.head[5..])
    }

    fn on_head(&mut self) {
        let [a, b, c, ..] = self.head;
        self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
        self.payload.clear();
        if self.kind() == HEADERS {
            let id = self.stream();
            self.opening = (id > self.highest_stream && id % 2 == 1).then_some(id);
        }
    }

    fn save_payload(&mut self, part: &[u8]) {
        match self.kind() {
            PRIORITY_UPDATE => {
                let space = (MAX_UPDATE_BYTES + 1).saturating_sub(self.payload.len());
                self.payload
                    .extend_from_slice(&part[..part.len().min(space)]);
            }
            SETTINGS if !self.flag(ACK) => {
                for byte in part {
                    self.payload.push(*byte);
                    if let [a, b, c, d, e, f] = self.payload[..] {
                        self.tracks_streams |= u16::from_be_bytes([a, b]) == NO_RFC7540_PRIORITIES
                            && u32::from_be_bytes([c, d, e, f]) == 1;
                        self.payload.clear();
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns `true` if reading must stop after the frame.
    fn on_frame(&mut self, on_event: &mut impl FnMut(FrameEvent<'_>)) -> bool {
        match self.kind() {
            HEADERS | CONTINUATION if self.flag(END_HEADERS) => {
                let Some(id) = self.opening.take() else {
                    return false;
                };
                self.highest_stream = id;
                self.opened += 1;
                if self.tracks_streams {
                    on_event(FrameEvent::Opened(id));
                }
                self.tracks_streams
            }
            RST_STREAM => {
                self.resets += 1;
                // hyper itself counts only the cancelled requests that it has not handed out. The
                // number of other requests is `opened - resets`.
                if self.tracks_streams && 2 * self.resets > self.opened + MAX_EXCESS_RESETS {
                    on_event(FrameEvent::Flood);
                }
                false
            }
            PRIORITY_UPDATE => {
                let (id, field) = match parse_update(self.stream(), &self.payload) {
                    Ok(update) => update,
                    Err(error) => {
                        on_event(FrameEvent::Invalid(error));
                        return true;
                    }
                };
                if self.payload.len() <= MAX_UPDATE_BYTES {
                    self.tracks_streams = true;
                    on_event(FrameEvent::Update(id, field));
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
/// Returns the frame that causes the error of RFC 9218, section 7.1, if the payload is too short,
/// or the update is not on stream 0, or the update does not concern a stream of the client.
fn parse_update(stream: u32, payload: &[u8]) -> Result<(u32, &[u8]), &'static [u8]> {
    let Some((id, field)) = payload.split_at_checked(4) else {
        return Err(FRAME_SIZE_ERROR);
    };
    // Even numbers are streams of the server, which opens none.
    match stream_number(id) {
        id if stream == 0 && id % 2 == 1 => Ok((id, field)),
        _ => Err(PROTOCOL_ERROR),
    }
}

fn stream_number(bytes: &[u8]) -> u32 {
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

    /// Returns the events in `bytes`, which follow a preface and are read in parts of these sizes,
    /// and the positions at which reading stops after requests.
    fn scan_all(bytes: &[u8], sizes: &[usize]) -> (Vec<String>, Vec<usize>) {
        let mut frames = FrameScanner::new();
        let (mut events, mut stops) = (Vec::new(), Vec::new());
        let all = [&[0; PREFACE_BYTES], bytes].concat();
        let (mut at, mut sizes) = (0, sizes.iter().cycle());
        while at < all.len() {
            let size = sizes.next().copied().unwrap_or(all.len());
            let part = &all[at..all.len().min(at + size)];
            let mut stops_here = false;
            let count = frames.scan(part, |event| {
                stops_here |= matches!(event, FrameEvent::Opened(_));
                events.push(format!("{event:?}"));
            });
            assert!((1..=part.len()).contains(&count), "{count}");
            assert!(frames.payload.len() <= MAX_UPDATE_BYTES + 1);
            at += count;
            stops.extend(stops_here.then(|| at - PREFACE_BYTES));
        }
        (events, stops)
    }

    fn formatted<const N: usize>(events: [FrameEvent<'_>; N]) -> Vec<String> {
        events.iter().map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn an_update_is_reported_and_then_each_new_stream() {
        let first = frame(HEADERS, END_HEADERS, 1, b"block");
        let second = frame(HEADERS, 0, 3, b"bl");
        let rest = frame(CONTINUATION, END_HEADERS, 3, b"ock");
        let trailers = frame(HEADERS, END_HEADERS, 3, b"");
        let update = update(1, "u=0");
        let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
        let bytes = [&settings[..], &first, &update, &second, &rest, &trailers].concat();
        let opened = settings.len() + first.len() + update.len() + second.len() + rest.len();
        for sizes in [&[][..], &[1], &[3, 7], &[10]] {
            let (events, stops) = scan_all(&bytes, sizes);
            // The first stream is not reported, because the client sent its first PRIORITY_UPDATE
            // only afterwards.
            let expected = formatted([FrameEvent::Update(1, b"u=0"), FrameEvent::Opened(3)]);
            assert_eq!(events, expected, "{sizes:?}");
            assert_eq!(stops, [opened], "{sizes:?}");
        }
        let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100, 0, 9, 0, 0, 0, 1]);
        let bytes = [settings, first].concat();
        assert_eq!(scan_all(&bytes, &[4]).0, formatted([FrameEvent::Opened(1)]));
    }

    #[test]
    fn long_updates_and_acknowledgements_of_settings_are_ignored() {
        let long = "x".repeat(MAX_UPDATE_BYTES);
        for bytes in [
            update(1, &long),
            frame(SETTINGS, ACK, 0, &[0, 9, 0, 0, 0, 1]),
        ] {
            assert_eq!(scan_all(&bytes, &[5]).0, formatted([]));
        }
    }

    #[test]
    fn invalid_updates_are_reported_with_their_errors() {
        let long = "x".repeat(2 * MAX_UPDATE_BYTES);
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
            let expected = formatted([FrameEvent::Invalid(error)]);
            assert_eq!(scan_all(&bytes, &[]).0, expected, "{bytes:?}");
            assert_eq!(scan_all(&bytes, &[1]).0, expected, "{bytes:?}");
        }
    }

    #[test]
    fn too_many_cancelled_requests_are_a_flood() {
        let mut bytes = frame(SETTINGS, 0, 0, &[0, 9, 0, 0, 0, 1]);
        for n in 0..MAX_EXCESS_RESETS as u32 {
            bytes.extend(frame(HEADERS, END_HEADERS, 2 * n + 1, b""));
            bytes.extend(frame(RST_STREAM, 0, 2 * n + 1, &[0; 4]));
        }
        let is_flood = |bytes: &[u8]| {
            scan_all(bytes, &[])
                .0
                .contains(&formatted([FrameEvent::Flood])[0])
        };
        assert!(!is_flood(&bytes));
        bytes.extend(frame(RST_STREAM, 0, 1, &[0; 4]));
        assert!(is_flood(&bytes));
    }

    /// Feeds the same bytes in different partitions. The events must be the same, each byte must be
    /// passed on once, and the number of saved bytes must stay bounded.
    #[test]
    fn fuzz_frames() {
        let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100, 0, 9, 0, 0, 0, 1]);
        let block = frame(HEADERS, END_HEADERS, 1, b"block");
        let parts = [
            frame(HEADERS, 0, 3, b"bl"),
            frame(CONTINUATION, END_HEADERS, 3, b"ock"),
        ]
        .concat();
        let reset = frame(RST_STREAM, 0, 1, &[0; 4]);
        let update = update(1, "u=1, i");
        let resets = reset.repeat(300);
        let all = [&settings[..], &block, &block, &parts, &resets, &update].concat();
        let samples = [&settings[..], &block, &parts, &reset, &update, &all];
        let words = ["\0\0\x04\x10\0\0\0\0\0"];
        fuzz::fuzz("frames", &samples, &words, 2000, |bytes| {
            let events = scan_all(bytes, &[]);
            assert_eq!(events, scan_all(bytes, &[1, 7, 2, 30]));
            fuzz::hash_of(events.0.len())
        });
    }
}
