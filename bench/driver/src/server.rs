//! Starts and ends one server process. Its CPU is set before it runs, its first lines name its
//! addresses, and SIGTERM ends it.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use upshift_load::child::{Child, listening_address, pin, without_real_time};

use crate::peers::Program;

/// Time within which a server must listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to connect to a starting proxy.
const CONNECT_POLL: Duration = Duration::from_millis(20);

/// A running server, which is ended on drop.
pub(crate) struct Server {
    child: Child,
    /// Addresses, in the order of the `--listen` options.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Servers to which a proxy forwards requests.
    backends: Vec<Server>,
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
            backends: Vec::new(),
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while server.addresses.len() < listen.len() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let line = server.child.line(remaining).map_err(|_| {
                format!("{} did not say `listening on ADDR`", program.file.display())
            })?;
            server.addresses.extend(listening_address(&line));
        }
        Ok(server)
    }

    /// Starts a proxy on `cpu` in front of other servers.
    ///
    /// The program prints nothing; it is ready when it accepts connections at `address`.
    pub(crate) fn start_proxy(
        program: &Program,
        address: SocketAddr,
        backends: Vec<Server>,
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
            backends,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if Instant::now() >= deadline {
                let file = program.file.display();
                return Err(format!("{file} does not listen at {address}"));
            }
            std::thread::sleep(CONNECT_POLL);
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Returns the process ids of the server and of the servers behind it.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let backends = self.backends.iter().flat_map(Server::pids);
        std::iter::once(self.pid()).chain(backends).collect()
    }
}
