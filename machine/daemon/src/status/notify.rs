//! What the daemon tells the service manager that has started it (sd_notify): nothing, if none has.
//!
//! One datagram to the socket of `NOTIFY_SOCKET`. With `WatchdogSec=` the manager restarts a daemon that says nothing for so long; the
//! control thread says something at each heartbeat, so a daemon whose control thread hangs is restarted, and the guardian gives back
//! what it had.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The manager's ear.
#[derive(Debug)]
pub(crate) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watched: bool,
}

impl Notify {
    /// As the environment says.
    pub(crate) fn new() -> Notify {
        let path = std::env::var_os("NOTIFY_SOCKET");
        let address = path.and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            _ => SocketAddr::from_pathname(path).ok(),
        });
        let socket = address.and_then(|address| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let own = std::process::id().to_string();
        // Of this process, if it says of which.
        let ours = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == own);
        Notify {
            socket,
            watched: ours && std::env::var_os("WATCHDOG_USEC").is_some(),
        }
    }

    fn say(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A manager that does not listen loses it.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    pub(crate) fn ready(&self, mode: &str) {
        self.say(&format!("READY=1\nSTATUS={mode}"));
    }

    /// For `Type=notify-reload`.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    pub(crate) fn reloaded(&self) {
        self.say("READY=1");
    }

    pub(crate) fn beat(&self) {
        if self.watched {
            self.say("WATCHDOG=1");
        }
    }

    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }
}
