//! The three test servers, each in two models: [`serve`] picks one of six functions. Each binds all addresses, calls [`announce`], serves until
//! SIGTERM or SIGINT and returns `Ok`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use upshift::Board;
use upshift_load::Burner;

use super::args::ServerArgs;
use super::{coroutine_matrix, coroutine_plaintext, coroutine_spin, thread};
use crate::choice::{Model, Switch};
use upshift_load::machine;

/// What a server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Squares of matrices.
    Matrix,
    /// `Hello, World!` over HTTP.
    Plaintext,
    /// CPU time, as much as is asked for.
    Spin,
}

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
    /// Number of vCPUs, at least 1 (coroutine model).
    pub(crate) vcpus: usize,
    /// CPU of each vCPU, in turn; empty: not pinned.
    pub(crate) pin: Vec<usize>,
    /// Suspend coroutines that overrun (coroutine model).
    pub(crate) preempt: bool,
    /// How long one may run (coroutine model); none: as the runtime has it.
    pub(crate) quantum: Option<Duration>,
    /// What carries out I/O.
    pub(crate) driver: upshift::Driver,
    /// Whether to join the machine's daemon (coroutine model).
    pub(crate) board: Board,
    /// Let `upshift top` look (coroutine model).
    pub(crate) observe: bool,
}

impl ServerOptions {
    fn new(args: &ServerArgs) -> ServerOptions {
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
            preempt: args.preempt == Switch::On,
            quantum: args.quantum,
            driver: args.driver.into(),
            board: args.board.into(),
            observe: args.observe,
        }
    }
}

/// Runs a server until a signal ends it.
pub(crate) fn serve(service: Service, args: &ServerArgs) -> Result<()> {
    machine::raise_file_limit();
    let options = ServerOptions::new(args);
    match (service, args.model) {
        (Service::Matrix, Model::Thread) => thread::serve_matrix(&options),
        (Service::Plaintext, Model::Thread) => thread::serve_plaintext(&options),
        (Service::Spin, Model::Thread) => thread::serve_spin(&options, calibrate()),
        (Service::Matrix, Model::Coroutine) => coroutine_matrix::serve(&options),
        (Service::Plaintext, Model::Coroutine) => coroutine_plaintext::serve(&options),
        (Service::Spin, Model::Coroutine) => coroutine_spin::serve(&options, calibrate()),
    }
}

/// A burn that is off by more than this is worth a word.
const LARGE_ERROR: f64 = 0.05;

/// Calibrates the burning of CPU time and says so when it is inexact.
fn calibrate() -> Burner {
    let burner = Burner::calibrate();
    if burner.error().abs() > LARGE_ERROR {
        eprintln!(
            "note: CPU time burnt differs from the CPU clock by {:+.0} %: something else uses this CPU, or its frequency changes",
            100.0 * burner.error()
        );
    }
    burner
}

/// Prints one line `listening on ADDRESS` per address: the program that started the server reads them.
pub(super) fn announce(addresses: impl IntoIterator<Item = SocketAddr>) -> Result<()> {
    let mut out = io::stdout().lock();
    for address in addresses {
        writeln!(out, "listening on {address}").context("cannot print the address")?;
    }
    out.flush().context("cannot print the address")
}

/// Adds to an error of binding what to do about it.
pub(super) fn bind_advice(error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program listens there: stop it (`ss -ltnp` names it), or choose another port; port 0 takes any free one"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has this address (`ip address` lists them)"
        }
        _ => return error.into(),
    };
    Error::msg(format!("{error}\n{advice}"))
}
