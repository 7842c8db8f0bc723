//! The checksums of IPv4, TCP, UDP and ICMP, of frames that leave or arrive by the card.
//!
//! `smoltcp` neither computes nor verifies checksums: loopback frames have not left memory, so they
//! need none, and this module adds eight bytes at a time.

use super::table::{TCP, UDP};

const ETHERNET: usize = 14;
const ICMP: u8 = 1;
/// ICMP type "unreachable": the heading of the undelivered packet follows.
const UNREACHABLE: u8 = 3;
const ICMP_HEADING: usize = 8;

/// Returns the sum of bytes as numbers of 16 bits, the first byte of each the higher one, with the
/// carries left in it.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The order of bytes does not matter to a sum whose carries are added at the end (RFC 1071),
    // except for the order of the result.
    let halves = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        (word & 0xffff_ffff) + (word >> 32)
    };
    let native = words.iter().map(halves).sum::<u64>() + halves(&last);
    u64::from(u16::from_be(fold(native)))
}

/// The carries added.
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Layout of a frame within IPv4: the offset and end of its payload, and the offset of the
/// payload's checksum.
struct Parts {
    payload: usize,
    end: usize,
    checksum: Option<usize>,
    /// Sum of the pseudo-header that TCP and UDP count besides their own bytes.
    pseudo: u64,
    protocol: u8,
}

/// `None`: it has none, or is cut off.
fn parts(frame: &[u8]) -> Option<Parts> {
    if frame.get(12..14) != Some(&[8, 0]) {
        return None;
    }
    let heading = frame.get(ETHERNET..ETHERNET + 20)?;
    let len = usize::from(heading[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([heading[2], heading[3]]));
    if len < 20 || total < len || frame.len() < ETHERNET + total {
        return None;
    }
    let (payload, end) = (ETHERNET + len, ETHERNET + total);
    let protocol = heading[9];
    let (offset, least) = match protocol {
        TCP => (Some(16), 20),
        UDP => (Some(6), 8),
        ICMP => (Some(2), ICMP_HEADING),
        _ => (None, 0),
    };
    if end < payload + least {
        return None;
    }
    let pseudo = match protocol {
        TCP | UDP => sum(&heading[12..20]) + u64::from(protocol) + (end - payload) as u64,
        _ => 0,
    };
    Some(Parts {
        payload,
        end,
        checksum: offset.map(|offset| payload + offset),
        pseudo,
        protocol,
    })
}

/// Returns false if a frame has a wrong checksum. The checksum of a fragment covers more than the
/// fragment, and fragments are not reassembled.
pub(super) fn is_right(frame: &[u8]) -> bool {
    let Some(parts) = parts(frame) else {
        // The frame is not IPv4, or `smoltcp` ignores it.
        return true;
    };
    let is_without = parts.protocol == UDP
        && parts.checksum.and_then(|at| frame.get(at..at + 2)) == Some(&[0, 0]);
    let payload = parts.pseudo + sum(&frame[parts.payload..parts.end]);
    fold(sum(&frame[ETHERNET..parts.payload])) == 0xffff
        && (parts.checksum.is_none() || is_without || fold(payload) == 0xffff)
}

/// Writes the checksums of a frame.
pub(super) fn fill(frame: &mut [u8]) {
    let Some(parts) = parts(frame) else {
        return;
    };
    fill_heading(&mut frame[ETHERNET..parts.payload]);
    let Some(at) = parts.checksum else {
        return;
    };
    if parts.protocol == ICMP && frame[parts.payload] == UNREACHABLE {
        let about = &mut frame[parts.payload + ICMP_HEADING..parts.end];
        let len = about.first().map_or(0, |first| usize::from(first & 15) * 4);
        if let Some(heading) = about.get_mut(..len).filter(|heading| heading.len() >= 20) {
            fill_heading(heading);
        }
    }
    frame[at..at + 2].fill(0);
    let sum = !fold(parts.pseudo + sum(&frame[parts.payload..parts.end]));
    // In UDP 0 says that there is none; all ones are the same number.
    let sum = if sum == 0 && parts.protocol == UDP {
        0xffff
    } else {
        sum
    };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn fill_heading(heading: &mut [u8]) {
    heading[10..12].fill(0);
    let sum = !fold(sum(heading));
    heading[10..12].copy_from_slice(&sum.to_be_bytes());
}
