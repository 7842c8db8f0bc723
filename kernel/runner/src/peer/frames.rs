//! A peer on a network that connects only the machine and this process. Each frame is a datagram on
//! 127.0.0.1, in the format of QEMU's `socket` network, so the peer can send frames that no network
//! stack would send.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::{RETRY_TIMEOUT, TIMEOUT, message};

/// Addresses on that network.
const MACHINE: [u8; 4] = [10, 0, 2, 15];
const PEER: [u8; 4] = [10, 0, 2, 2];
/// MAC address of QEMU's first card.
const MACHINE_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// An unused MAC address.
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Length of the longest frame that is answered, in bytes.
const FRAME: usize = 1514;
/// Lengths that exceed the medium; lengths from 4,085 bytes on also exceed a buffer of the card.
const TOO_LONG: [usize; 12] = [
    1515, 1518, 1600, 2048, 4000, 4083, 4084, 4085, 4096, 9000, 32_768, 65_000,
];
/// Length of the frame of an ordinary echo request, in bytes.
const PING: usize = 98;
/// Number of frames in the flood.
const FLOOD: usize = 300;
/// Time within which a damaged frame must stay unanswered.
const SILENCE: Duration = Duration::from_millis(50);

/// The peer's end of the machine's wire.
struct Wire {
    socket: UdpSocket,
    /// Number of the last echo request.
    number: u16,
}

/// Checks that the machine still answers after frames of every length: whole, damaged, truncated
/// and too long. Sends `quit` at the end. `machine` and `peer` are the UDP ports of both ends.
pub(crate) fn check_frames(machine: u16, peer: u16) -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, peer)).map_err(message)?;
    socket
        .connect((Ipv4Addr::LOCALHOST, machine))
        .map_err(message)?;
    let mut wire = Wire { socket, number: 0 };
    wire.wait_for_answer("at first")?;
    for len in [60, 1000, FRAME - 1, FRAME] {
        let limit = Instant::now() + TIMEOUT;
        while !wire.answers(len, RETRY_TIMEOUT)? {
            if Instant::now() > limit {
                return Err(format!("a frame of {len} bytes is not answered"));
            }
        }
    }
    // A byte of the IPv4 header, and a byte of the payload.
    for at in [22, PING - 1] {
        let mut request = wire.request(PING);
        request[at] ^= 1;
        if wire.is_answered(&request, SILENCE)? {
            return Err(format!("a frame is answered although byte {at} is wrong"));
        }
    }
    for len in TOO_LONG {
        if wire.answers(len, SILENCE)? {
            return Err(format!("a frame of {len} bytes is answered"));
        }
        wire.wait_for_answer(&format!("after {len} bytes"))?;
    }
    for n in 0..FLOOD {
        let len = match n % 4 {
            // Truncate at every length; QEMU would take an empty frame as the end of the
            // connection.
            0 => 1 + n / 4,
            offset => TOO_LONG[(n + offset) % TOO_LONG.len()],
        };
        let mut frame = wire.request(len.max(60));
        frame.truncate(len);
        wire.send(&frame);
    }
    wire.wait_for_answer("after a flood")?;
    wire.end()
}

impl Wire {
    fn send(&self, frame: &[u8]) {
        // The host refuses the datagram while QEMU has not started.
        let _ = self.socket.send(frame);
    }

    /// Repeats an echo request until the machine answers, for at most [`TIMEOUT`].
    fn wait_for_answer(&mut self, when: &str) -> Result<(), String> {
        let limit = Instant::now() + TIMEOUT;
        while !self.answers(PING, RETRY_TIMEOUT)? {
            if Instant::now() > limit {
                return Err(format!("nothing answers {when}"));
            }
        }
        Ok(())
    }

    /// Returns an ICMP echo request in a frame of `len` bytes.
    fn request(&mut self, len: usize) -> Vec<u8> {
        self.number = self.number.wrapping_add(1);
        let mut icmp = vec![8, 0, 0, 0, 0, 1];
        icmp.extend_from_slice(&self.number.to_be_bytes());
        icmp.extend((8..len - 34).map(|at| at as u8));
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        packet(1, &icmp)
    }

    /// Returns whether the machine answers a request of `len` bytes before the time-out.
    fn answers(&mut self, len: usize, timeout: Duration) -> Result<bool, String> {
        let request = self.request(len);
        self.is_answered(&request, timeout)
    }

    /// Returns whether the last request is answered; a damaged answer is an error.
    fn is_answered(&mut self, request: &[u8], timeout: Duration) -> Result<bool, String> {
        self.send(request);
        let (number, limit) = (self.number.to_be_bytes(), Instant::now() + timeout);
        let mut buffer = vec![0; 70_000];
        while let remaining = limit.saturating_duration_since(Instant::now())
            && !remaining.is_zero()
        {
            self.socket
                .set_read_timeout(Some(remaining))
                .map_err(message)?;
            let frame = match self.socket.recv(&mut buffer) {
                Ok(count) => &buffer[..count],
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    // QEMU has not started, or has ended.
                    std::thread::sleep(remaining);
                    return Ok(false);
                }
                Err(_) => continue,
            };
            if frame.get(12..14) == Some(&[8, 6]) {
                self.answer_arp(frame);
            }
            let is_answer = frame.get(23) == Some(&1) && frame.get(34) == Some(&0);
            if is_answer && frame.get(40..42) == Some(&number) {
                // The payload must equal that of the request.
                return if frame.get(42..request.len()) == request.get(42..) {
                    Ok(true)
                } else {
                    Err(format!("the echo of {} bytes is wrong", request.len()))
                };
            }
        }
        Ok(false)
    }

    fn answer_arp(&self, request: &[u8]) {
        if request.get(20..22) != Some(&[0, 1]) || request.get(38..42) != Some(&PEER) {
            return;
        }
        let mut answer = [&MACHINE_MAC[..], &PEER_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
        answer.extend([&PEER_MAC[..], &PEER, &MACHINE_MAC, &MACHINE].concat());
        self.send(&answer);
    }

    /// Sends `quit` until the machine has ended.
    fn end(&self) -> Result<(), String> {
        let mut udp = [[0x30, 0x39], [0, 7], [0, 8 + 4], [0, 0]].concat();
        udp.extend(b"quit");
        let limit = Instant::now() + TIMEOUT;
        self.socket
            .set_read_timeout(Some(RETRY_TIMEOUT))
            .map_err(message)?;
        while Instant::now() < limit {
            self.send(&packet(17, &udp));
            let received = self.socket.recv(&mut [0; 2000]);
            if received.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                return Ok(());
            }
        }
        Err("the machine does not end".to_owned())
    }
}

/// Returns a frame to the machine with this payload in an IPv4 packet.
fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = 20 + payload.len();
    let mut ip = vec![0x45, 0];
    ip.extend_from_slice(&u16::try_from(total).unwrap_or(u16::MAX).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    ip.extend([PEER, MACHINE].concat());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&MACHINE_MAC[..], &PEER_MAC, &[8, 0], &ip, payload].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_rfc() {
        // The example of RFC 1071, whose sum is 0xddf2.
        let bytes = [0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
        let packet = packet(1, b"odd");
        assert_eq!(checksum(&packet[14..34]), 0);
    }
}
