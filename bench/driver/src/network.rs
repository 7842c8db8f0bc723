//! Gives a section of the benchmark a network namespace of its own, with the kernel's default
//! congestion control.
//!
//! Servers and clients inherit the namespace from the thread that starts them. Connections of other
//! programs do not affect this network, and TCP behaves the same on every machine. BBR, which some
//! machines use by default, would pace the segments of a busy connection by timers, which can delay
//! replies by milliseconds.
//!
//! The kernel reports the start and the end of processes to the initial network namespace only, so
//! sections whose programs need these reports stay there.

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use crate::section::Section;

/// The kernel's default congestion control algorithm.
const CONGESTION_CONTROL: &str = "cubic";
const CONGESTION_CONTROL_FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Keeps the calling thread in a network namespace of its own until this value is dropped.
struct Namespace {
    outer_namespace: File,
}

impl Namespace {
    /// Moves the calling thread into a new network namespace.
    ///
    /// # Errors
    /// The calling thread lacks CAP_SYS_ADMIN, or the namespace cannot be set up.
    fn enter() -> io::Result<Self> {
        let outer_namespace = File::open("/proc/thread-self/ns/net")?;
        // SAFETY: `unshare` takes no pointers, and CLONE_NEWNET changes only the network namespace
        // of the calling thread, so no state of other threads changes.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        let namespace = Self { outer_namespace };
        start_loopback()?;
        std::fs::write(CONGESTION_CONTROL_FILE, CONGESTION_CONTROL)?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // SAFETY: `setns` takes no pointers; the descriptor is open and refers to a network
        // namespace.
        let outcome =
            check(unsafe { libc::setns(self.outer_namespace.as_raw_fd(), libc::CLONE_NEWNET) });
        outcome.expect("cannot return to the previous network namespace");
    }
}

/// Runs `measure` in the network of `section`. Returns its result, and a description of the
/// network.
pub(crate) fn with_network<T>(section: Section, measure: impl FnOnce() -> T) -> (T, String) {
    let namespace = (!section.needs_process_events()).then(Namespace::enter);
    let location = match namespace {
        None => "in the machine's network namespace".to_owned(),
        Some(Ok(_)) => "in a network namespace of its own".to_owned(),
        Some(Err(ref error)) => format!("in the machine's network namespace ({error})"),
    };
    let congestion_control = std::fs::read_to_string(CONGESTION_CONTROL_FILE);
    let algorithm = congestion_control.unwrap_or_default();
    let description = format!("TCP congestion control {}, {location}", algorithm.trim());
    (measure(), description)
}

/// Brings up the loopback interface of the calling thread's namespace.
fn start_loopback() -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(socket)?;
    // SAFETY: the descriptor has just been opened, and nothing else owns it.
    let socket = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(socket) };
    // SAFETY: zeroes are a valid request: an empty name, no flags.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the pointer is valid, because `request` lives during the call, which only reads the
    // name and the flags.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_a_section_without_process_events_runs_in_its_own_namespace() {
        let link = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let outer_namespace = link();
        let ((inner, outcome), description) = with_network(Section::Plaintext, || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            (link(), TcpStream::connect(listener.local_addr().unwrap()))
        });
        assert!(outcome.is_ok(), "{outcome:?}");
        assert_eq!(link(), outer_namespace);
        let is_own = description.ends_with("of its own");
        assert_eq!(inner != outer_namespace, is_own, "{description}");
        assert_eq!(
            description.contains(CONGESTION_CONTROL),
            is_own,
            "{description}"
        );
        let (_, description) = with_network(Section::Assign, || ());
        assert!(description.ends_with("the machine's network namespace"));
    }
}
