//! Runs HAProxy in front of the axum application on tokio: one process or two, all on CPU 0.
//!
//! The configurations are `peers/haproxy/*.cfg`. HAProxy and the processes behind it together form
//! the server: they share CPU 0, and the CPU time of all of them counts.

use std::net::{SocketAddr, TcpListener};

use crate::options::bench_dir;
use crate::peers::{HAPROXY_NICE, HAPROXY_QUEUE, HAPROXY_WEIGHT, Program};
use crate::sections::assign::Cgroup;
use crate::server::Server;

/// Ports outside the range that Linux assigns to clients.
const PORTS: std::ops::Range<u16> = 20_000..32_768;

/// Means by which urgent requests are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// The second process has nice 19.
    Nice,
    /// HAProxy and the first process are in the heaviest cgroup, the second is in the lightest.
    Weight,
    /// There is no second process; HAProxy has a queue by priority.
    Queue,
}

/// The processes behind HAProxy: one or two of the axum application.
#[derive(Clone, Debug)]
pub(super) struct Backends {
    means: Means,
    axum: Program,
}

/// A running server, with the cgroups of its processes.
pub(super) struct Deployed {
    pub(super) server: Server,
    /// Removed after the server's end, because a cgroup with processes cannot be removed.
    _cgroups: Vec<Cgroup>,
}

impl From<Server> for Deployed {
    fn from(server: Server) -> Deployed {
        Deployed {
            server,
            _cgroups: Vec::new(),
        }
    }
}

impl Backends {
    /// Returns the processes behind HAProxy for a server of this name; `None` for other servers.
    pub(super) fn of(name: &str, axum: &Program) -> Option<Backends> {
        let means = match name {
            HAPROXY_NICE => Means::Nice,
            HAPROXY_WEIGHT => Means::Weight,
            HAPROXY_QUEUE => Means::Queue,
            _ => return None,
        };
        Some(Backends {
            means,
            axum: axum.clone(),
        })
    }

    /// Starts the processes, then HAProxy.
    pub(super) fn start(&self, haproxy: &Program) -> Result<Deployed, String> {
        let start = |program: &Program| Server::start(program, &["127.0.0.1:0".into()], Some(0));
        let mut backends = vec![start(&self.axum)?];
        match self.means {
            Means::Nice => backends.push(start(&with_nice_19(&self.axum))?),
            Means::Weight => backends.push(start(&self.axum)?),
            Means::Queue => (),
        }
        let mut cgroups = Vec::new();
        if self.means == Means::Weight {
            cgroups.extend([Cgroup::new("urgent", false)?, Cgroup::new("rest", false)?]);
        }
        let address = free_address()?;
        let variables = ["URGENT", "REST"].into_iter().zip(&backends);
        let variables = variables.map(|(name, server)| (name, server.addresses[0]));
        let variables = variables.chain([("LISTEN", address)]);
        let variables = variables.map(|(name, address)| (name.to_owned(), address.to_string()));
        let folder = bench_dir().join("peers/haproxy");
        let folder = ["-C".to_owned(), folder.to_string_lossy().into_owned()];
        let haproxy = Program {
            args: folder.into_iter().chain(haproxy.args.clone()).collect(),
            env: variables.collect(),
            ..haproxy.clone()
        };
        let server = Server::start_proxy(&haproxy, address, backends, 0)?;
        if let [urgent, rest] = &cgroups[..] {
            urgent.set_heaviest()?;
            rest.set_lightest()?;
            for (pid, cgroup) in server.pids().into_iter().zip([urgent, urgent, rest]) {
                cgroup.add(pid)?;
            }
        }
        Ok(Deployed {
            server,
            _cgroups: cgroups,
        })
    }
}

fn with_nice_19(program: &Program) -> Program {
    let words = [
        "-n".into(),
        "19".into(),
        program.file.to_string_lossy().into_owned(),
    ];
    Program {
        file: "nice".into(),
        args: words.into_iter().chain(program.args.clone()).collect(),
        ..program.clone()
    }
}

/// Returns a currently free address. HAProxy does not report the port that it got for port 0.
fn free_address() -> Result<SocketAddr, String> {
    PORTS
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|address| TcpListener::bind(address).is_ok())
        .ok_or_else(|| "no port is free".into())
}
