//! One server process: started with its CPU set before it runs, announced by its first line, ended by SIGTERM.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use upshift_load::child::{Child, listening, pin, without_real_time};

use crate::peers::Program;

/// How long a server may take to listen.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How often a proxy is asked whether it listens.
const CONNECT_POLL: Duration = Duration::from_millis(20);

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    /// Where it listens, in the order of its `--listen` options.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The servers that a proxy passes requests on to.
    behind: Vec<Server>,
}

impl Server {
    /// Starts the server on `cpu` (any if `None`), listening at each of `listen`.
    pub(crate) fn start(
        program: &Program,
        listen: &[String],
        cpu: Option<usize>,
    ) -> Result<Server, String> {
        let mut command = Command::new(&program.file);
        command
            .args(&program.args)
            .envs(program.env.iter().cloned());
        for address in listen {
            command.args(["--listen", address]);
        }
        if let Some(user) = program.user {
            command.uid(user).gid(user);
            without_real_time(&mut command);
        }
        if let Some(cpu) = cpu {
            pin(&mut command, cpu);
        }
        let child = Child::start(&mut command)
            .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
        let mut server = Server {
            child,
            addresses: Vec::new(),
            behind: Vec::new(),
        };
        let deadline = Instant::now() + START_PATIENCE;
        while server.addresses.len() < listen.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = server.child.line(left).map_err(|_| {
                format!("{} did not say `listening on ADDR`", program.file.display())
            })?;
            server.addresses.extend(listening(&line));
        }
        Ok(server)
    }

    /// Starts a proxy on `cpu` in front of other servers.
    ///
    /// The program says nothing; it is ready when it accepts connections at `address`.
    pub(crate) fn proxy(
        program: &Program,
        address: SocketAddr,
        behind: Vec<Server>,
        cpu: usize,
    ) -> Result<Server, String> {
        let mut command = Command::new(&program.file);
        command
            .args(&program.args)
            .envs(program.env.iter().cloned());
        pin(&mut command, cpu);
        let child = Child::start(&mut command)
            .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
        let server = Server {
            child,
            addresses: vec![address],
            behind,
        };
        let deadline = Instant::now() + START_PATIENCE;
        while TcpStream::connect(address).is_err() {
            if Instant::now() >= deadline {
                let file = program.file.display();
                return Err(format!("{file} does not listen at {address}"));
            }
            std::thread::sleep(CONNECT_POLL);
        }
        Ok(server)
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The process ids of the server and of those behind it.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let behind = self.behind.iter().flat_map(Server::pids);
        std::iter::once(self.pid()).chain(behind).collect()
    }
}
