//! Computes and checks the checksums of IPv4, TCP, UDP and ICMP, for frames that the card sends or
//! receives.
//!
//! `smoltcp` neither computes nor verifies checksums. Loopback frames need none, because they do
//! not leave memory; for other frames, this module processes eight bytes at a time.

use super::table::{TCP, UDP};

const ETHERNET_HEADER: usize = 14;
const ICMP: u8 = 1;
/// ICMP type "unreachable". Its payload begins with the header of the undelivered packet.
const UNREACHABLE: u8 = 3;
const ICMP_HEADER: usize = 8;

/// Returns the sum of the bytes as big-endian numbers of 16 bits, with the carries in the upper
/// bits.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // The order of bytes is irrelevant to a sum whose carries are added at the end (RFC 1071),
    // except for the order of the result.
    let halves = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        (word & 0xffff_ffff) + (word >> 32)
    };
    let native = words.iter().map(halves).sum::<u64>() + halves(&last);
    u64::from(u16::from_be(fold(native)))
}

/// Adds the carries to the lower 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Layout of an IPv4 frame: the offsets of the start, the end and the checksum of its payload.
struct Layout {
    payload: usize,
    end: usize,
    checksum: Option<usize>,
    /// Sum of the pseudo-header, which TCP and UDP include in their checksum.
    pseudo: u64,
    protocol: u8,
}

fn layout(frame: &[u8]) -> Option<Layout> {
    if frame.get(12..14) != Some(&[8, 0]) {
        return None;
    }
    let header = frame.get(ETHERNET_HEADER..ETHERNET_HEADER + 20)?;
    let len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if len < 20 || total < len || frame.len() < ETHERNET_HEADER + total {
        return None;
    }
    let (payload, end) = (ETHERNET_HEADER + len, ETHERNET_HEADER + total);
    let protocol = header[9];
    let (offset, min_len) = match protocol {
        TCP => (Some(16), 20),
        UDP => (Some(6), 8),
        ICMP => (Some(2), ICMP_HEADER),
        _ => (None, 0),
    };
    if end < payload + min_len {
        return None;
    }
    let pseudo = match protocol {
        TCP | UDP => sum(&header[12..20]) + u64::from(protocol) + (end - payload) as u64,
        _ => 0,
    };
    Some(Layout {
        payload,
        end,
        checksum: offset.map(|offset| payload + offset),
        pseudo,
        protocol,
    })
}

/// Returns false if a frame has a wrong checksum. A fragment normally fails, because its checksum
/// covers more than the fragment; fragments are not reassembled in any case.
pub(super) fn is_valid(frame: &[u8]) -> bool {
    let Some(layout) = layout(frame) else {
        // The frame is not IPv4, or `smoltcp` ignores it.
        return true;
    };
    let has_no_checksum = layout.protocol == UDP
        && layout.checksum.and_then(|at| frame.get(at..at + 2)) == Some(&[0, 0]);
    let payload = layout.pseudo + sum(&frame[layout.payload..layout.end]);
    fold(sum(&frame[ETHERNET_HEADER..layout.payload])) == 0xffff
        && (layout.checksum.is_none() || has_no_checksum || fold(payload) == 0xffff)
}

/// Writes the checksums of a frame, including that of the IPv4 header of the undelivered packet in
/// an ICMP error.
pub(super) fn fill(frame: &mut [u8]) {
    let Some(layout) = layout(frame) else {
        return;
    };
    fill_header(&mut frame[ETHERNET_HEADER..layout.payload]);
    let Some(at) = layout.checksum else {
        return;
    };
    if layout.protocol == ICMP && frame[layout.payload] == UNREACHABLE {
        let undelivered = &mut frame[layout.payload + ICMP_HEADER..layout.end];
        let len = undelivered
            .first()
            .map_or(0, |first| usize::from(first & 15) * 4);
        if let Some(header) = undelivered
            .get_mut(..len)
            .filter(|header| header.len() >= 20)
        {
            fill_header(header);
        }
    }
    frame[at..at + 2].fill(0);
    let sum = !fold(layout.pseudo + sum(&frame[layout.payload..layout.end]));
    // In UDP, 0 means no checksum; all ones represents the same number.
    let sum = if sum == 0 && layout.protocol == UDP {
        0xffff
    } else {
        sum
    };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn fill_header(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !fold(sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
