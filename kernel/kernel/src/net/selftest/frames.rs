//! Builds well-formed frames from a peer at a given address.

use alloc::vec::Vec;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv4Repr, IpAddress,
    IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
    TcpTimestampRepr, UdpPacket, UdpRepr,
};

use super::SELF;
use crate::net::NET;

/// Builds a frame to the machine itself, with a payload of `len` bytes in IPv4.
fn packet(from: u32, protocol: IpProtocol, len: usize, emit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ip = Ipv4Repr {
        src_addr: Ipv4Address::from(from),
        dst_addr: Ipv4Address::from(SELF),
        next_header: protocol,
        payload_len: len,
        hop_limit: 64,
    };
    let mut bytes = alloc::vec![0; 14 + 20 + len];
    let mut ethernet = EthernetFrame::new_unchecked(&mut bytes[..]);
    let ours = EthernetAddress(NET.get().lock().link.address());
    ethernet.set_src_addr(EthernetAddress([2, 0, 0, 0, 0, 9]));
    ethernet.set_dst_addr(ours);
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let mut packet = Ipv4Packet::new_unchecked(&mut bytes[14..]);
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    emit(&mut bytes[34..]);
    bytes
}

/// Builds a TCP segment to a port of the machine.
pub(super) fn segment(
    from: (u32, u16),
    to: u16,
    control: TcpControl,
    ack: bool,
    data: &[u8],
) -> Vec<u8> {
    let repr = TcpRepr {
        src_port: from.1,
        dst_port: to,
        control,
        seq_number: TcpSeqNumber(1000),
        ack_number: ack.then_some(TcpSeqNumber(2000)),
        window_len: 4096,
        window_scale: None,
        max_seg_size: (control == TcpControl::Syn).then_some(1460),
        sack_permitted: false,
        sack_ranges: [None, None, None],
        timestamp: None::<TcpTimestampRepr>,
        payload: data,
    };
    let (source, target) = (address(from.0), address(SELF));
    packet(from.0, IpProtocol::Tcp, repr.buffer_len(), |bytes| {
        let mut packet = TcpPacket::new_unchecked(bytes);
        repr.emit(
            &mut packet,
            &source,
            &target,
            &ChecksumCapabilities::default(),
        );
    })
}

pub(super) fn address(word: u32) -> IpAddress {
    IpAddress::Ipv4(Ipv4Address::from(word))
}

/// Builds a UDP datagram to a port of the machine.
pub(super) fn datagram(from: (u32, u16), to: u16, data: &[u8]) -> Vec<u8> {
    let repr = UdpRepr {
        src_port: from.1,
        dst_port: to,
    };
    let len = repr.header_len() + data.len();
    packet(from.0, IpProtocol::Udp, len, |bytes| {
        repr.emit(
            &mut UdpPacket::new_unchecked(bytes),
            &address(from.0),
            &address(SELF),
            data.len(),
            |to| to.copy_from_slice(data),
            &ChecksumCapabilities::default(),
        );
    })
}

/// Builds an echo request to the machine, in a frame of `len` bytes.
pub(super) fn echo_request(from: u32, len: usize) -> Vec<u8> {
    let data = alloc::vec![b'?'; len - 14 - 20 - 8];
    let repr = Icmpv4Repr::EchoRequest {
        ident: 1,
        seq_no: 2,
        data: &data,
    };
    packet(from, IpProtocol::Icmp, repr.buffer_len(), |bytes| {
        let mut packet = Icmpv4Packet::new_unchecked(bytes);
        repr.emit(&mut packet, &ChecksumCapabilities::default());
    })
}

/// Builds an ARP query for the machine, or a reply to it.
pub(super) fn arp(from: u32, is_reply: bool) -> Vec<u8> {
    let mut bytes = alloc::vec![0; 42];
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    bytes[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + u8::from(is_reply)]);
    bytes[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    bytes[28..32].copy_from_slice(&from.to_be_bytes());
    bytes[38..].copy_from_slice(&SELF.to_be_bytes());
    bytes
}
