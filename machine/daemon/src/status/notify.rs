//! Sends messages to the service manager that has started the daemon, if there is one (sd_notify).
//!
//! A message is one datagram to the socket in `NOTIFY_SOCKET`. With `WatchdogSec=` the manager
//! restarts a daemon that sends no message for that time. The control thread sends a message at
//! each heartbeat, so a daemon whose control thread hangs is restarted. Its threads are restored by
//! the guardian, a separate process.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

#[derive(Debug)]
pub(crate) struct Notify {
    socket: Option<(UnixDatagram, SocketAddr)>,
    has_watchdog: bool,
}

impl Notify {
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
        let own_pid = std::process::id().to_string();
        // If `WATCHDOG_PID` is set, it names the process to which the watchdog applies.
        let is_meant = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == own_pid);
        Notify {
            socket,
            has_watchdog: is_meant && std::env::var_os("WATCHDOG_USEC").is_some(),
        }
    }

    fn send(&self, text: &str) {
        if let Some((socket, address)) = &self.socket {
            // A manager that does not listen loses the message.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    pub(crate) fn ready(&self, mode: &str) {
        self.send(&format!("READY=1\nSTATUS={mode}"));
    }

    /// Announces a reload, for `Type=notify-reload`.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    pub(crate) fn reloaded(&self) {
        self.send("READY=1");
    }

    pub(crate) fn beat(&self) {
        if self.has_watchdog {
            self.send("WATCHDOG=1");
        }
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }
}
