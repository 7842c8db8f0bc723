//! Checks the frames of a machine's network card, as QEMU records them (`filter-dump`, a pcap
//! file): reports segments that the machine retransmitted although they cannot have been lost.
//!
//! No frame is lost on the way to the peer, and time-outs take at least a second. Therefore an
//! earlier retransmission is an error, however busy the host is.

use std::collections::HashMap;
use std::ops::Range;

/// Shortest legitimate delay of a retransmission, in microseconds: half of the shortest time-out.
const MIN_RETRANSMIT_MICROS: u64 = 500_000;
/// Lengths of the headers of the file and of each frame, in bytes.
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;
const MACHINE: [u8; 4] = [10, 0, 2, 15];

struct Segment {
    micros: u64,
    /// Ports, and the address of the peer.
    connection: [u8; 8],
    is_syn: bool,
    sequence: u32,
    len: u32,
}

/// Returns the number of segments with payload that the machine has sent.
///
/// # Errors
/// Fails if a segment was retransmitted too soon, or if the record is malformed.
pub(crate) fn check(record: &[u8]) -> Result<usize, String> {
    let segments = segments(record).ok_or("the record of the network is truncated")?;
    // Ranges of sequence numbers and their times of sending, by connection.
    let mut sent: HashMap<[u8; 8], Vec<(Range<u32>, u64)>> = HashMap::new();
    let mut count = 0;
    for segment in segments {
        let known = sent.entry(segment.connection).or_default();
        if segment.is_syn {
            known.clear();
        }
        // A segment with a single byte is a probe of a closed window.
        if segment.len < 2 {
            continue;
        }
        count += 1;
        let retransmitted = known.iter().find(|(bytes, micros)| {
            let offset = segment.sequence.wrapping_sub(bytes.start);
            offset < bytes.end.wrapping_sub(bytes.start)
                && segment.micros - micros < MIN_RETRANSMIT_MICROS
        });
        if let Some((_, before)) = retransmitted {
            let after = segment.micros - before;
            return Err(format!("a segment was sent again after {after} µs"));
        }
        known.push((
            segment.sequence..segment.sequence.wrapping_add(segment.len),
            segment.micros,
        ));
    }
    Ok(count)
}

/// Returns the TCP segments that the machine has sent, or `None` if the record is truncated.
fn segments(record: &[u8]) -> Option<Vec<Segment>> {
    let mut rest = record.get(FILE_HEADER..)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let micros = u64::from(word(0)?) * 1_000_000 + u64::from(word(4)?);
        let end = FRAME_HEADER + word(8)? as usize;
        all.extend(segment(rest.get(FRAME_HEADER..end)?, micros));
        rest = &rest[end..];
    }
    Some(all)
}

fn segment(frame: &[u8], micros: u64) -> Option<Segment> {
    let ip = frame.get(14..).filter(|_| frame[12..14] == [8, 0])?;
    let (header, total) = (
        usize::from(ip.first()? & 15) * 4,
        u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]),
    );
    if *ip.get(9)? != 6 || ip.get(12..16)? != MACHINE {
        return None;
    }
    let tcp = ip.get(header..usize::from(total))?;
    let flags = *tcp.get(13)?;
    let mut connection = [0; 8];
    connection[..4].copy_from_slice(tcp.get(..4)?);
    connection[4..].copy_from_slice(ip.get(16..20)?);
    Some(Segment {
        micros,
        connection,
        is_syn: flags & 2 != 0,
        sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
        len: u32::try_from(tcp.len().checked_sub(usize::from(tcp[12] >> 4) * 4)?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a recorded frame with a segment of the machine, sent at `micros`.
    fn frame(micros: u32, sequence: u32, len: usize) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 20 + len];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(40 + len as u16).to_be_bytes());
        frame[23] = 6;
        frame[26..30].copy_from_slice(&MACHINE);
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame[46] = 0x50;
        let len = (frame.len() as u32).to_le_bytes();
        let words = [[0; 4], micros.to_le_bytes(), len, len];
        [words.concat(), frame].concat()
    }

    fn record(frames: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; FILE_HEADER], frames.concat()].concat()
    }

    #[test]
    fn segments_in_order_are_accepted() {
        let all = record(&[frame(0, 100, 10), frame(1, 110, 10), frame(2, 120, 0)]);
        assert_eq!(check(&all), Ok(2));
    }

    #[test]
    fn early_retransmission_is_an_error() {
        let soon = [frame(0, 100, 10), frame(1, 110, 10), frame(9, 105, 10)];
        assert!(check(&record(&soon)).is_err());
        let late = [frame(0, 100, 10), frame(600_000, 100, 10)];
        assert_eq!(check(&record(&late)), Ok(2));
    }

    #[test]
    fn sequence_numbers_may_wrap() {
        let wraps = [frame(0, u32::MAX - 4, 10), frame(1, 5, 10)];
        assert_eq!(check(&record(&wraps)), Ok(2));
        let again = [frame(0, u32::MAX - 4, 10), frame(1, 2, 10)];
        assert!(check(&record(&again)).is_err());
    }

    #[test]
    fn truncated_record_is_an_error() {
        let all = record(&[frame(0, 100, 10)]);
        assert!(check(&all[..all.len() - 1]).is_err());
        assert!(check(&[]).is_err());
    }
}
