//! Establishes the connections of a plan, a few at a time, so that no listen queue overflows.
//!
//! The phase is bounded: it ends when no attempt has succeeded or failed for [`Plan::patience`],
//! and within 20 ms when stopped. It is not measured and may allocate.

use super::plan::Plan;
use crate::os::{self, Epoll};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of connections that are being established at a time.
const MAX_CONNECTING: usize = 64;

/// Establishes a non-blocking stream for each of `groups`, which are indices of the plan's groups;
/// `None` stands for a failure.
///
/// `on_failure` is called for each failure, with the group and a message.
pub(crate) fn establish(
    plan: &Plan,
    groups: &[usize],
    mut on_failure: impl FnMut(usize, String),
) -> io::Result<Vec<Option<TcpStream>>> {
    let target_of = |&group: &usize| (group, plan.groups[group].target);
    let targets: Vec<(usize, SocketAddr)> = groups.iter().map(target_of).collect();
    // The rest of the process uses some descriptors.
    os::raise_open_files(targets.len() as u64 + 128)?;

    let mut epoll = Epoll::new(MAX_CONNECTING)?;
    let mut streams: Vec<Option<TcpStream>> = targets.iter().map(|_| None).collect();
    let mut pending: BTreeMap<usize, Socket> = BTreeMap::new();
    let mut next = 0;
    let mut last_progress = Instant::now();
    while next < targets.len() || !pending.is_empty() {
        if plan
            .stop
            .as_ref()
            .is_some_and(|s| s.load(Ordering::Relaxed))
        {
            return Ok(streams);
        }
        while next < targets.len() && pending.len() < MAX_CONNECTING {
            let (group, target) = targets[next];
            match begin_connect(target, plan.groups[group].source) {
                Ok(socket) => {
                    epoll.add(&socket, next as u64, os::EDGE_TRIGGERED)?;
                    pending.insert(next, socket);
                }
                Err(error) => on_failure(group, connect_error(target, &error)),
            }
            next += 1;
        }
        let n = epoll.wait(Duration::from_millis(20))?;
        for i in 0..n {
            let index = epoll.ready(i).token as usize;
            let Some(socket) = pending.remove(&index) else {
                continue;
            };
            last_progress = Instant::now();
            let (group, target) = targets[index];
            let refused = match socket.take_error() {
                Ok(error) => error,
                Err(error) => Some(error),
            };
            match refused {
                None => streams[index] = Some(socket.into()),
                Some(error) => on_failure(group, connect_error(target, &error)),
            }
        }
        if last_progress.elapsed() > plan.patience {
            let rest = pending.keys().copied().chain(next..targets.len());
            for (group, target) in rest.map(|index| targets[index]) {
                let seconds = plan.patience.as_secs_f64();
                on_failure(
                    group,
                    format!("cannot connect to {target}: no answer for {seconds} s"),
                );
            }
            break;
        }
    }
    Ok(streams)
}

fn begin_connect(target: SocketAddr, source: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(target),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(source) = source {
        os::choose_port_on_connect(&socket)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

fn connect_error(target: SocketAddr, error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => ": is the server running there?",
        Some(libc::EMFILE) => ": raise the limit on open files (ulimit -n)",
        Some(libc::EADDRNOTAVAIL) => ": out of local ports, wait a minute or use fewer connections",
        _ => "",
    };
    format!("cannot connect to {target}: {error}{advice}")
}

#[cfg(test)]
mod tests {
    use super::super::{Group, Work};
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn connections_come_from_the_address_of_their_group() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
        let groups = vec![
            Group::new(target, 1, "own"),
            Group {
                source: Some(source),
                ..Group::new(target, 1, "another")
            },
        ];
        let plan = Plan::new(groups, Work::Matrix { n: 1 }, Duration::from_secs(1));
        let streams = establish(&plan, &[0, 1], |_, why| panic!("{why}")).unwrap();
        let local = |stream: &Option<TcpStream>| stream.as_ref()?.local_addr().ok();
        let sources: Vec<_> = streams
            .iter()
            .filter_map(local)
            .map(|address| address.ip())
            .collect();
        assert_eq!(sources, [IpAddr::V4(Ipv4Addr::LOCALHOST), source]);
    }
}
