//! Prints the addresses of a server, or advice if it cannot listen.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::{Context, Error, Result};

/// Prints one line `listening on ADDRESS` per address, for the program that started the server.
pub(super) fn announce(addresses: impl IntoIterator<Item = SocketAddr>) -> Result<()> {
    let mut out = io::stdout().lock();
    for address in addresses {
        writeln!(out, "listening on {address}").context("cannot print the address")?;
    }
    out.flush().context("cannot print the address")
}

/// Adds a remedy to an error of binding.
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
