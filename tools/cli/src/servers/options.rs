//! What a server needs to know, whatever it serves.

use std::net::SocketAddr;
use std::time::Duration;

use upshift::Board;

use super::args::ServerArgs;
use crate::choice::Switch;

/// An address and the level of the connections that come to it, 0..=63.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) address: SocketAddr,
    pub(crate) level: u8,
}

/// What a server needs to know.
#[derive(Debug, Clone)]
pub(crate) struct ServerOptions {
    /// At least one.
    pub(crate) addresses: Vec<Address>,
    /// Number of vCPUs, at least 1.
    pub(crate) vcpus: usize,
    /// CPU of each vCPU, in turn; empty: not pinned.
    pub(crate) pin: Vec<usize>,
    /// Suspend coroutines that overrun.
    pub(crate) preempt: bool,
    /// How long one may run; none: as the runtime has it.
    pub(crate) quantum: Option<Duration>,
    /// What carries out I/O.
    pub(crate) driver: upshift::Driver,
    /// Whether to join the machine's daemon.
    pub(crate) board: Board,
    /// Let `upshift top` look.
    pub(crate) observe: bool,
}

impl ServerOptions {
    pub(super) fn new(args: &ServerArgs) -> ServerOptions {
        let addresses = args
            .listen
            .iter()
            .map(|listen| Address {
                address: listen.address,
                level: listen.level.unwrap_or(args.level),
            })
            .collect();
        ServerOptions {
            addresses,
            vcpus: args.vcpus.unwrap_or(args.pin.len().max(1)),
            pin: args.pin.clone(),
            preempt: args.scheduling.preempt == Switch::On,
            quantum: args.scheduling.quantum,
            driver: args.driver.into(),
            board: args.scheduling.board.into(),
            observe: args.observe,
        }
    }
}
