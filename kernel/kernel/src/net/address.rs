//! The addresses of the machine: always 127.0.0.0/8; with a card also an address from DHCP, or the
//! address on the kernel's command line: `address=10.0.2.15/24,10.0.2.2`, where the second address
//! is the gateway.

use smoltcp::socket::dhcpv4;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress,
    IpCidr, Ipv4Address, Ipv4Cidr,
};

use super::endpoint::endpoint;
use super::lists::Index;
use super::table::{Key, Kind, Owner, UDP};
use super::{SOCKETS, Stack, now};
use crate::command_line::refuse;
use crate::executor::LEAST_URGENT_WORK;
use crate::println;

const DHCP_CLIENT_PORT: u16 = 68;

impl Stack {
    /// Configures the address, or starts the DHCP client. Called while booting; `address` is the
    /// value from the command line.
    ///
    /// # Panics
    /// If there is no memory, at boot time.
    pub(super) fn configure_address(&mut self, address: Option<&str>) {
        self.set_address(None, None);
        if self.link.card.is_none() {
            return;
        }
        if let Some((address, gateway)) = address.and_then(parse) {
            self.set_address(Some(address), gateway);
            return;
        }
        if let Some(word) = address.filter(|word| *word != "dhcp") {
            refuse(format_args!(
                "address={word} is no address; write dhcp, ADDRESS/BITS or ADDRESS/BITS,GATEWAY"
            ));
        }
        let client = self
            .table
            .add(dhcpv4::Socket::new(), Kind::Dhcp, Owner::Program, None)
            .expect("memory to boot");
        debug_assert!(usize::from(client) < SOCKETS);
        let key = Key {
            protocol: UDP,
            port: DHCP_CLIENT_PORT,
            peer: (0, 0),
        };
        self.table.set_key(client, Some(key));
        self.schedule(client);
    }

    /// Applies an address that DHCP has assigned or withdrawn, if any.
    pub(super) fn address_changed(&mut self, client: Index) {
        let mut endpoint = endpoint(client);
        let socket = endpoint.socket::<dhcpv4::Socket<'_>>();
        let (address, gateway) = match socket.poll() {
            None => return,
            Some(dhcpv4::Event::Deconfigured) => (None, None),
            Some(dhcpv4::Event::Configured(config)) => (Some(config.address), config.router),
        };
        drop(endpoint);
        if let Some(address) = address {
            println!("upshift: address {address} by DHCP");
        }
        self.set_address(address, gateway);
    }

    /// Adds the machine's own addresses to the neighbours of `smoltcp`, as an ARP reply would.
    ///
    /// `smoltcp` resolves one neighbour per second, for all sockets together. Frames for the
    /// machine itself do not wait for this, whatever the number of unanswered requests.
    pub(super) fn add_own_neighbours(&mut self) {
        /// Length of an ARP frame in bytes.
        const LEN: usize = 42;
        let hardware = EthernetAddress(self.link.address());
        let mut addresses = [None; 2];
        for (slot, address) in addresses.iter_mut().zip(self.interface.ip_addrs()) {
            *slot = Some(address.address());
        }
        for IpAddress::Ipv4(address) in addresses.into_iter().flatten() {
            let answer = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: hardware,
                source_protocol_addr: address,
                target_hardware_addr: hardware,
                target_protocol_addr: address,
            };
            let mut frame = [0; LEN];
            let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
            ethernet.set_src_addr(hardware);
            ethernet.set_dst_addr(hardware);
            ethernet.set_ethertype(EthernetProtocol::Arp);
            answer.emit(&mut ArpPacket::new_unchecked(ethernet.payload_mut()));
            // The reply itself is not answered.
            let mut port = self.link.port(Some(&frame), LEAST_URGENT_WORK);
            let unmatched = &mut self.unmatched;
            self.interface
                .poll_ingress_single(now(), &mut port, unmatched);
        }
    }

    fn set_address(&mut self, address: Option<Ipv4Cidr>, gateway: Option<Ipv4Address>) {
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            // The list has space for two addresses.
            let _ = addresses.push(IpCidr::new(IpAddress::v4(127, 0, 0, 1), 8));
            if let Some(address) = address {
                let _ = addresses.push(IpCidr::Ipv4(address));
            }
        });
        self.link
            .set_own_address(address.map(|address| address.address().octets()));
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        if let Some(gateway) = gateway {
            // The list has space for one route.
            let _ = routes.add_default_ipv4_route(gateway);
        }
    }
}

/// Parses `ADDRESS/BITS`, or `ADDRESS/BITS,GATEWAY`.
fn parse(text: &str) -> Option<(Ipv4Cidr, Option<Ipv4Address>)> {
    let (address, gateway) = match text.split_once(',') {
        Some((address, gateway)) => (address, Some(gateway.parse().ok()?)),
        None => (text, None),
    };
    let (address, bits) = address.split_once('/')?;
    let bits = bits.parse().ok().filter(|bits| *bits <= 32)?;
    Some((Ipv4Cidr::new(address.parse().ok()?, bits), gateway))
}
