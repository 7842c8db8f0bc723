//! Warns the operator when a server runs on tokio's thread instead of the vCPUs.
//!
//! `axum::serve` compiles and answers in this runtime, but its connections are tasks of tokio,
//! which share one thread and have no level. Only latency shows this, so a task of tokio searches
//! for such a server and prints once how to change it.
//!
//! The sign of a server is a listening socket in the epoll set of tokio's driver while tasks of
//! tokio are alive. The kernel shows the set in `/proc/self/fdinfo`. A program that accepts from a
//! socket of tokio in a coroutine, and spawns its connections with `upshift::spawn`, shows the same
//! sign if it also has tasks of tokio; so the text of the notice is conditional.
//!
//! A search reads the files of `/proc/self/fdinfo` up to the file of the set, which has a line for
//! each descriptor of tokio's driver. The first search comes after [`FIRST_SEARCH`], each further
//! search after twice the time, until the notice has been printed.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::UnixDatagram;
use tokio::runtime::Handle;

use crate::notice::notice;

/// Time after which the first search begins.
const FIRST_SEARCH: Duration = Duration::from_secs(1);

/// Searches until it finds a server on tokio's thread, and reports it. This future is itself a task
/// of tokio.
pub(super) async fn watch() {
    let mut wait = FIRST_SEARCH;
    loop {
        tokio::time::sleep(wait).await;
        if let Some(addresses) = server(&Handle::current(), 1) {
            notice(format_args!(
                "tokio listens on {addresses}: if its connections are tasks of tokio, as those of `axum::serve` and of hyper's \
                 examples are, they share one thread and have no level. Change `axum::serve(listener, app)` to \
                 `upshift::axum::serve(listener, app)` (feature `axum`), and its listener to `upshift::net::TcpListener::bind(…)?`; \
                 hyper: `upshift::hyper::Server`; for other protocols spawn each connection by `upshift::spawn`"
            ));
            return;
        }
        wait = wait.saturating_mul(2);
    }
}

/// Returns the addresses of the listening sockets that tokio's driver watches, if there are any
/// and more than `own_tasks` tasks of tokio are alive.
fn server(tokio: &Handle, own_tasks: usize) -> Option<String> {
    if tokio.metrics().num_alive_tasks() <= own_tasks {
        return None;
    }
    let addresses: Vec<_> = watched_descriptors(tokio)?
        .into_iter()
        .filter_map(listening_address)
        .collect();
    (!addresses.is_empty()).then(|| addresses.join(", "))
}

/// Returns the descriptors in the epoll set of tokio's driver. tokio does not name its set, so the
/// function searches for the set that contains a socket which was just registered with tokio.
fn watched_descriptors(tokio: &Handle) -> Option<Vec<RawFd>> {
    let _within = tokio.enter();
    let probe = UnixDatagram::unbound().ok()?;
    let sets = fs::read_dir("/proc/self/fdinfo").ok()?;
    sets.filter_map(|set| fs::read_to_string(set.ok()?.path()).ok())
        .map(|set| members(&set))
        .find(|members| members.contains(&probe.as_raw_fd()))
}

/// Returns the descriptors that the kernel's text about a set names: `tfd:        7 events: …`.
fn members(set: &str) -> Vec<RawFd> {
    let number = |line: &str| {
        let rest = line.strip_prefix("tfd:")?;
        rest.split_whitespace().next()?.parse().ok()
    };
    set.lines().filter_map(number).collect()
}

/// Returns the address that a socket listens on; `None` for every other descriptor.
fn listening_address(fd: RawFd) -> Option<String> {
    // SAFETY: the number is not -1. If the socket's owner closes it meanwhile, the calls below
    // fail, or only read an option and an address of the descriptor that then has the number.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let socket = SockRef::from(&borrowed);
    if !socket.is_listener().ok()? {
        return None;
    }
    let address = socket.local_addr().ok()?;
    let path = || Some(address.as_pathname()?.display().to_string());
    Some(match address.as_socket() {
        Some(address) => address.to_string(),
        None => path().unwrap_or_else(|| "a Unix socket".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_about_a_set_names_its_members() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1066\n\
                    tfd:        4 events:       19 data:             1000  pos:0 ino:42a sdev:10\n\
                    tfd:       12 events: 80000019 data:             2000  pos:0 ino:42b sdev:10\n";
        assert_eq!(members(text), [4, 12]);
        assert!(members("pos:\t0\neventfd-count:                0\n").is_empty());
    }

    #[test]
    fn a_listener_of_tokios_is_a_server_while_tokio_has_tasks() {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let std_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let task = tokio.spawn(std::future::pending::<()>());
        let std_address = std_listener.local_addr().unwrap();
        let client = tokio.block_on(tokio::net::TcpStream::connect(std_address));
        // Neither a listener of another driver nor a connection of tokio is a server.
        assert_eq!(server(tokio.handle(), 0), None);
        let listener = tokio.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let address = listener.as_ref().unwrap().local_addr().unwrap();
        assert_eq!(server(tokio.handle(), 0), Some(address.to_string()));
        // The task of this module does not count.
        assert_eq!(server(tokio.handle(), 1), None);
        drop((client, listener));
        assert_eq!(server(tokio.handle(), 0), None);
        task.abort();
    }
}
